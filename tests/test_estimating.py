"""Model, device and price for EXPLAIN, from settings. Nothing of Spark runs."""

import json

import pytest

from quail_spark import estimating
from quail_spark.conf import QuailConf
from quail_spark.errors import ConfigError
from quail_spark.optimizer.anchor import SideSize
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

SPEC = OperatorSpec("f", "filter", (Predicate("{0} is kind", (Argument(0),)),))


def conf(**settings: str) -> QuailConf:
    return QuailConf({f"spark.quail.{name.replace('_', '.', 1)}": value for name, value in settings.items()})


def test_a_named_model_on_a_named_device():
    context = estimating.plan_context(
        conf(model="Qwen/Qwen3-4B-FP8", estimate_device="H100", estimate_pricePerHour="2.5")
    )
    assert (context.roofline.model.name, context.roofline.device.name) == ("qwen3-4b", "H100")
    assert (context.roofline.precision, context.price, context.layout) == ("fp8", 2.5, "document_first")
    assert estimating.plan_context(conf(model="Qwen/Qwen3-4B", estimate_device="H100")).roofline.precision == "bfloat16"
    assert context.roofline.kv_dtype == "bfloat16"
    assert (
        estimating.plan_context(
            conf(model="Qwen/Qwen3-4B-FP8", estimate_device="H100", engine_kv="fp8")
        ).roofline.kv_dtype
        == "fp8"
    )
    off = conf(model="Qwen/Qwen3-4B-FP8", estimate_device="H100", engine_fp8="off")
    assert estimating.plan_context(off).roofline.precision == "bfloat16"
    assert (
        estimating.plan_context(conf(model="Qwen/Qwen3-4B-FP8", estimate_device="A100")).roofline.precision
        == "bfloat16"
    )


def test_a_directory_tells_its_shapes(tmp_path):
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 99,
        "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert estimating.model_spec(str(tmp_path)).layers == 2
    assert estimating.is_fp8(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert estimating.model_spec(str(tmp_path)) is None


def test_what_is_unknown_gives_no_line():
    size = (SideSize(1000, 400.0),)
    assert estimating.estimate_lines(SPEC, size, conf(model="scripted://hash", device="cpu")) == []
    with pytest.raises(
        ConfigError, match=r"spark\.quail\.estimate\.device is 'TPU'; accepted: cpu, H200, .*, auto, cuda:N"
    ):
        conf(model="qwen3-4b", estimate_device="TPU")
    (line,) = estimating.estimate_lines(SPEC, size, conf(model="qwen3-4b", device="cpu"))
    assert line.startswith("about 1.0k answers, ") and "on CPU" in line and "(speed assumed)" in line


def test_only_what_statistics_know_is_estimated():
    known = conf(model="qwen3-4b", estimate_device="H200", estimate_pricePerHour="4")
    join = OperatorSpec("j", "pairs", (Predicate("{0} fits {1}", (Argument(0), Argument(0, True)), (0,), 0.1),))
    sizes = (SideSize(1000, 400.0), SideSize(200, 40.0))
    for keyed, kind, answers in ((False, "inner", "200k"), (True, "left", "200"), (False, "existence", "10.0k")):
        (line,) = estimating.estimate_lines(join, sizes, known, kind, keyed)
        assert line.startswith(f"about {answers} answers, ") and "guessed" not in line
    (line,) = estimating.estimate_lines(join, (sizes[0], SideSize(200, None, 8000)), known)
    assert line.endswith("; guessed: text lengths")
    unknown = SideSize(None, None, 2**63 - 1)
    assert estimating.estimate_lines(join, (sizes[0], unknown), known) == []
    assert estimating.estimate_lines(join, (sizes[0], SideSize(None, None, 8000)), known, keyed=True) == []
    (line,) = estimating.estimate_lines(SPEC, (SideSize(None, None, 80_000),), known)
    assert line.endswith("; guessed: rows, text lengths, pass rates")
    constant = OperatorSpec("c", "filter", (Predicate("is it late?", ()),))
    assert estimating.estimate_lines(constant, (SideSize(1000, 400.0),), known) == []


def test_gpus_by_the_files_of_the_driver(tmp_path, monkeypatch):
    for bus, name in (("0000:01", "NVIDIA L4"), ("0000:02", "NVIDIA H200")):
        (tmp_path / bus).mkdir()
        facts = f"Model: \t\t {name}\nIRQ:   \t 99\nGPU UUID: \t GPU-{bus[-2:]}aa-bb\nVideo BIOS: \t 9\n"
        (tmp_path / bus / "information").write_text(facts)
    known = [("NVIDIA L4", "GPU-01aa-bb"), ("NVIDIA H200", "GPU-02aa-bb")]
    assert estimating.gpus(str(tmp_path / "*" / "information")) == known
    monkeypatch.setattr(estimating, "gpus", lambda: known)
    assert estimating.device_spec("cuda:1", {}).name == "H200"
    assert estimating.device_spec("cuda:2", {}) is None


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1,0", ["H200", "L4", None]),
        ("1", ["H200", None]),
        ("GPU-02aa,GPU-01aa-bb", ["H200", "L4"]),
        ("GPU-0,MIG-02aa-bb,GPU-77,5", [None, None, None, None]),  # two begin so; a slice; unknown ones
        ("", [None]),
    ],
)
def test_the_estimate_is_for_the_gpu_that_cuda_shows(visible, names, monkeypatch):
    monkeypatch.setattr(estimating, "gpus", lambda: [("NVIDIA L4", "GPU-01aa-bb"), ("NVIDIA H200", "GPU-02aa-bb")])
    environment = {"CUDA_VISIBLE_DEVICES": visible}
    found = [estimating.device_spec(f"cuda:{index}", environment) for index in range(len(names))]
    assert [device and device.name for device in found] == names
    if visible:
        first = estimating.device_spec("auto", environment)
        assert (first and first.name) == names[0]
    else:
        assert estimating.device_spec("auto", environment).name.startswith("CPU")


def test_the_price_is_a_number():
    with pytest.raises(ConfigError, match=r"estimate\.pricePerHour is 'cheap'; accepted: a number"):
        conf(estimate_pricePerHour="cheap")
