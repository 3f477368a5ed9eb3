"""Answers in Parquet files that are added and never changed, below a path on any file system that pyarrow knows.

    <location>/<model>/answers-<nanoseconds since 1970>-<host>-<process>-<random>.parquet

`model` is a hash of whatever answers depend on besides the prompt; the columns are `key` (binary, 16 bytes: the hash of
a prompt) and `margin` (float32); the schema's metadata says whose answers these are, with a checksum. A file is written under a hidden
name and then renamed, so a reader sees whole files, and leaves out what it can't read. Merging writes a new file and
deletes afterwards what that has taken in: each answer stands in a whole file at any time, whoever else reads, writes or
merges.
"""

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from quail_spark.optimizer.errors import ConfigError

KEY = "S16"
ERRORS = (OSError, pa.ArrowException)  # what file systems and broken files raise
_SCHEMA = pa.schema([pa.field("key", pa.binary(16), nullable=False), pa.field("margin", pa.float32(), nullable=False)])
_ABANDONED = 3600.0  # seconds after which a hidden file is taken for one whose writer was killed
_READERS = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """Answers sorted by key, each once: `keys` S16 [n], `margins` float32 [n]."""

    keys: np.ndarray
    margins: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    @staticmethod
    def of(keys: np.ndarray, margins: np.ndarray) -> "Run":
        """From answers in any order."""
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = np.ones(len(keys), bool)
        first[1:] = keys[1:] != keys[:-1]
        return Run(keys[first], margins[order][first])

    @staticmethod
    def of_dict(margins: dict[bytes, float]) -> "Run":
        """From a map of 16-byte keys."""
        return Run.of(np.array(list(margins), KEY), np.fromiter(margins.values(), np.float32, len(margins)))

    @staticmethod
    def merged(runs: list["Run"]) -> "Run":
        """All answers of several runs."""
        return Run.of(np.concatenate([r.keys for r in runs]), np.concatenate([r.margins for r in runs]))

    def find(self, keys: list[bytes]) -> dict[bytes, float]:
        """The margins of those keys that are here."""
        if not len(self):
            return {}
        wanted = np.array(keys, KEY)
        at = np.searchsorted(self.keys, wanted).clip(max=len(self) - 1)
        hits = np.flatnonzero(self.keys[at] == wanted)
        return {keys[hit]: float(self.margins[at[hit]]) for hit in hits}


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """File system and path of an absolute path or a URI."""
    return fs.FileSystem.from_uri(location) if "://" in location else (fs.LocalFileSystem(), location)


def check_location(location: str) -> None:
    """Create the directory if need be; write, list and delete a file. Raises ConfigError when that can't be done."""
    try:
        filesystem, path = open_location(location)
        filesystem.create_dir(path, recursive=True)
        probe = f"{path}/.probe-{secrets.token_hex(8)}"
        with filesystem.open_output_stream(probe) as sink:
            sink.write(b"quail-spark")
        filesystem.get_file_info(fs.FileSelector(path))
        filesystem.delete_file(probe)
    except ERRORS as error:
        raise ConfigError(
            f"spark.quail.answerStore is {location!r}, which can't be read and written from {socket.gethostname()}: "
            f"{error}; accepted: a directory, or a URI of a file system that pyarrow knows, such as s3:// or gs://"
        ) from None


class AnswerFiles:
    """The files of one model. Methods raise what is in `ERRORS`, but for single files that can't be read."""

    def __init__(self, location: str, identity: str):
        self._filesystem, root = open_location(location)
        self._identity = identity
        self._directory = f"{root.rstrip('/')}/{blake2b(identity.encode(), digest_size=8).hexdigest()}"
        self.unreadable: set[str] = set()

    def names(self) -> list[str]:
        """Of all whole files, newest first."""
        names = (info.base_name for info in self._list())
        return sorted((n for n in names if n.startswith("answers-") and n.endswith(".parquet")), reverse=True)

    def read(self, names: list[str]) -> list[Run | None]:
        """The answers of each file; None for one that another process has merged by now, or that can't be read."""
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self._read, names))

    def write(self, run: Run) -> str:
        """Add a file; returns its name."""
        name = f"answers-{time.time_ns()}-{_host()}-{os.getpid()}-{secrets.token_hex(4)}.parquet"
        path, draft = f"{self._directory}/{name}", f"{self._directory}/.{name}"
        facts = {"schema": 1, "identity": self._identity, "checksum": _checksum(run.keys, run.margins)}
        columns = [
            pa.Array.from_buffers(field.type, len(run), [None, pa.py_buffer(np.ascontiguousarray(values))])
            for field, values in zip(_SCHEMA, (run.keys, run.margins), strict=True)
        ]
        table = pa.Table.from_arrays(columns, schema=_SCHEMA.with_metadata({"quail_spark": json.dumps(facts)}))
        self._filesystem.create_dir(self._directory, recursive=True)
        try:
            with self._filesystem.open_output_stream(draft) as sink:
                pq.write_table(table, sink, use_dictionary=False, write_statistics=False)
            self._filesystem.move(draft, path)
        except BaseException:
            with suppress(*ERRORS):
                self._filesystem.delete_file(draft)
            raise
        return name

    def delete(self, names: Iterable[str]) -> None:
        """Delete files that are merged, and drafts of writers that were killed."""
        for name in names:
            with suppress(FileNotFoundError):
                self._filesystem.delete_file(f"{self._directory}/{name}")
        for info in self._list():
            age = time.time() - info.mtime.timestamp() if info.mtime else 0.0
            if info.base_name.startswith(".answers-") and age > _ABANDONED:
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(info.path)

    def _list(self) -> list[fs.FileInfo]:
        found = self._filesystem.get_file_info(fs.FileSelector(self._directory, allow_not_found=True))
        return [info for info in found if info.is_file]

    def _read(self, name: str) -> Run | None:
        try:
            with self._filesystem.open_input_file(f"{self._directory}/{name}") as source:
                table = pq.ParquetFile(source).read(_SCHEMA.names).combine_chunks()
            if not table.schema.equals(_SCHEMA) or any(column.null_count for column in table.columns):
                raise pa.ArrowInvalid(f"its columns are {table.schema.to_string(show_schema_metadata=False)!r}")
            keys, margins = (_values(table[name], dtype) for name, dtype in (("key", KEY), ("margin", np.float32)))
            if _facts(table.schema).get("checksum") not in (None, _checksum(keys, margins)):
                raise pa.ArrowInvalid("its answers are not those that were written")
            finite = np.isfinite(margins)  # no engine writes others
            return Run.of(keys[finite], margins[finite])
        except FileNotFoundError:
            return None
        except (*ERRORS, ValueError) as error:  # a ValueError where the file's own description is broken
            self.unreadable.add(name)
            _log.warning("the answers in %s/%s can't be read and are left out: %s", self._directory, name, error)
            return None


def _facts(schema: pa.Schema) -> dict:
    return json.loads((schema.metadata or {}).get(b"quail_spark", b"{}"))


def _checksum(keys: np.ndarray, margins: np.ndarray) -> str:
    digest = blake2b(np.ascontiguousarray(keys).tobytes(), digest_size=8)
    digest.update(np.ascontiguousarray(margins).tobytes())
    return digest.hexdigest()


def _values(column: pa.ChunkedArray, dtype) -> np.ndarray:
    parts = [np.frombuffer(c.buffers()[1], dtype, len(c), c.offset * np.dtype(dtype).itemsize) for c in column.chunks]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _host() -> str:
    return "".join(c if c.isalnum() else "_" for c in socket.gethostname())[:40]
