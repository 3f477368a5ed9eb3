"""A virtual environment that holds a few packages of its own and takes all others from the one that runs this.

    python tools/overlay.py DIRECTORY REQUIREMENTS

For the Spark versions of the test matrix: PyTorch and the rest are installed once. Its own packages come first.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def main(directory: Path, requirements: Path) -> None:
    print(f"==> Installing {requirements} into {directory}", flush=True)
    venv.create(directory, with_pip=False, symlinks=True, clear=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--requirement", str(requirements)], check=True)
    # A .pth file is read after the directory it lies in is on the path. addsitedir, unlike a bare path, also
    # reads the .pth files of the other environment, where an editable install lives.
    shared = sysconfig.get_path("purelib")
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    (Path(own.stdout.strip()) / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
