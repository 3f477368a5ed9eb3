"""Run notebooks from the first cell to the last and keep what they show: `python tools/run_notebooks.py notebooks/*.ipynb`.

What processes wrote to standard error is left out, and so are times of execution and this machine's directories.
"""

import json
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from quail_spark.engine.cache import cache_dir

REPOSITORY = Path(__file__).resolve().parent.parent


def main(paths: list[str]) -> None:
    """Each in its own directory, with a kernel of this interpreter."""
    for path in map(Path, paths):
        print(f"==> {path}", flush=True)
        book = nbformat.read(path, as_version=4)
        where = {"metadata": {"path": str(path.parent)}}
        NotebookClient(book, timeout=900, kernel_name="python3", resources=where, record_timing=False).execute()
        for cell in book.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        book.metadata.language_info = {"name": "python"}
        nbformat.write(nbformat.reads(elsewhere(json.dumps(book)), as_version=4), path)


def elsewhere(text: str) -> str:
    """The text with directories as they are named on any machine."""
    for directory, name in (
        (cache_dir(), "~/.cache/quail-spark"),
        (REPOSITORY, "quail-spark"),
        (tempfile.gettempdir(), "/tmp"),
    ):
        text = text.replace(str(directory), name)
    return text


if __name__ == "__main__":
    main(sys.argv[1:])
