"""The GPU discovery script, on machines made up of a fake nvidia-smi and fake device files."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from quail_spark.cli import main


@pytest.fixture
def script(capsys) -> Path:
    assert main(["gpu-script"]) == 0
    return Path(capsys.readouterr().out.strip())


@pytest.fixture
def machine(tmp_path, script):
    """Runs the script with a PATH of nothing but a shell's tools, and device files of a folder of its own."""
    tools, devices = tmp_path / "bin", tmp_path / "dev"
    tools.mkdir()
    devices.mkdir()
    for tool in ("sh", "tr"):
        found = next(path for path in (Path("/bin") / tool, Path("/usr/bin") / tool) if path.exists())
        (tools / tool).symlink_to(found)
    copy = tmp_path / "copy.sh"
    copy.write_text(script.read_text().replace("/dev/nvidia[", f"{devices}/nvidia["))
    copy.chmod(0o755)

    def run(smi: str | None = None, files: tuple[str, ...] = (), visible: str | None = None):
        if smi is not None:
            (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
            (tools / "nvidia-smi").chmod(0o755)
        for name in files:
            (devices / name).touch()
        environment = {"PATH": str(tools)} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
        return subprocess.run([copy], env=environment, capture_output=True, text=True, check=False)

    return run


def addresses(done) -> list[str]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"name", "addresses"} and found["name"] == "gpu"
    return found["addresses"]


def test_spark_can_run_it(script):
    assert os.access(script, os.X_OK) and script.read_text().startswith("#!/bin/sh\n")


@pytest.mark.parametrize(("listed", "expected"), [("0\\n1\\n2\\n3", ["0", "1", "2", "3"]), ("0", ["0"]), ("", [])])
def test_indices_of_nvidia_smi(machine, listed, expected):
    asked = '[ "$*" = "--query-gpu=index --format=csv,noheader" ] || exit 9'
    assert addresses(machine(smi=f"{asked}; printf '{listed}'", files=("nvidia7",))) == expected


def test_device_files_where_there_is_no_nvidia_smi(machine):
    """Their numbers may have gaps in a container; CUDA's have none."""
    assert addresses(machine(files=("nvidia2", "nvidia5", "nvidiactl", "nvidia-uvm"))) == ["0", "1"]


def test_a_machine_without_gpus(machine):
    assert addresses(machine(files=("nvidiactl",))) == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,3", ["2", "3"]),
        ("GPU-8f-1,MIG-2c", ["GPU-8f-1", "MIG-2c"]),
        (" 1 , 0 ", ["1", "0"]),
        ("1,-1,0", ["1"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_what_the_cluster_manager_shows_counts_alone(machine, visible, expected):
    assert addresses(machine(smi="echo 0", visible=visible)) == expected


def test_a_broken_driver_is_an_error_not_a_machine_without_gpus(machine):
    done = machine(smi="echo Failed to initialize NVML; exit 18", files=("nvidia0",))
    assert done.returncode == 1 and done.stdout == "" and "Failed to initialize NVML" in done.stderr
