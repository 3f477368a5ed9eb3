"""Runs the Triton tests in the interpreter where there is no card."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card: the Triton tests run on it, in this process")
def test_triton_kernels_in_the_interpreter():
    files = sorted(map(str, Path(__file__).parent.parent.glob("*/test_triton_*.py")))
    assert files
    command = [sys.executable, "-P", "-m", "pytest", "-rs", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert " passed" in result.stdout
