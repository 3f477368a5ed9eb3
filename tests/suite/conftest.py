"""The suite's modules are importable by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "suite"))
sys.path.insert(0, str(Path(__file__).parent))
