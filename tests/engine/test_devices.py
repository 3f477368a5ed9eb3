"""Which GPU is which, by what a process is shown."""

import random

import pytest

from quail_spark.engine import devices
from quail_spark.engine.devices import address_of, count_gpus, device_of, visible_gpus
from quail_spark.engine.runtime_dir import RuntimeDirectory
from quail_spark.optimizer.errors import ConfigError


def shown(text: str | None) -> dict[str, str]:
    return {} if text is None else {"CUDA_VISIBLE_DEVICES": text}


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        (None, None),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", ["0"]),
        ("3, 1", ["3", "1"]),
        ("2,-1,0", ["2"]),
        ("GPU-8f,MIG-2c", ["GPU-8f", "MIG-2c"]),
        ("0,,1", ["0"]),
    ],
)
def test_visible(text, visible, monkeypatch):
    monkeypatch.setattr(devices, "glob", lambda pattern: ["/dev/nvidia0", "/dev/nvidia1"])
    assert visible_gpus(shown(text)) == visible
    assert count_gpus(shown(text)) == (2 if visible is None else len(visible))


@pytest.mark.parametrize(
    ("address", "text", "device"),
    [
        ("5", None, "cuda:5"),
        ("5", "4,5", "cuda:1"),  # the cluster manager hides some: the address is one of those shown
        ("1", "4,5", "cuda:1"),  # a script that counts what it is shown
        ("1", "1,0", "cuda:0"),  # an entry comes before a place
        ("GPU-8f", "GPU-2c,GPU-8f", "cuda:1"),
    ],
)
def test_device_of_an_address(address, text, device):
    assert device_of(address, shown(text)) == device


@pytest.mark.parametrize(
    ("address", "text"), [("GPU-8f", None), ("GPU-8f", "0,1"), ("2", "0,1"), ("0", ""), ("0", "-1"), ("-1", None)]
)
def test_an_address_that_is_not_shown_is_refused(address, text):
    with pytest.raises(ConfigError) as caught:
        device_of(address, shown(text))
    assert f"the GPU {address!r}" in str(caught.value) and "gpu-script" in str(caught.value)
    assert repr(text) in str(caught.value) if text is not None else "is not set" in str(caught.value)


@pytest.mark.parametrize("seed", range(5))
def test_processes_that_are_shown_different_gpus_agree_on_their_names(seed):
    """Two containers without walls: each sees its own as cuda:0, and their engines must be two."""
    rng = random.Random(seed)
    machine = [str(i) for i in range(8)] if seed % 2 else [f"GPU-{rng.randbytes(8).hex()}" for _ in range(8)]
    views = [rng.sample(machine, rng.randrange(1, 8)) for _ in range(4)]
    directories = {}
    for view in views:
        for address in view:
            environment = shown(",".join(view))
            name = address_of(device_of(address, environment), environment)
            assert name == f"cuda:{address}"
            directories.setdefault(RuntimeDirectory.of("application", name).path, set()).add(address)
    assert all(len(addresses) == 1 for addresses in directories.values())
    assert len(directories) == len({address for view in views for address in view})


def test_addresses_without_a_mask_are_devices():
    assert [address_of(device, {}) for device in ("cpu", "cuda:0", "cuda:12")] == ["cpu", "cuda:0", "cuda:12"]
    assert address_of("cpu", shown("1")) == "cpu"
    assert address_of("cuda:7", shown("1")) == "cuda:7"  # not shown: the engine's start says so


def test_long_names_still_fit_a_socket_path():
    path = RuntimeDirectory.of("a", "cuda:MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2").path
    assert len(path.name) <= len("cuda-15") and path != RuntimeDirectory.of("a", "cuda:MIG-4eb87630").path
