"""Files for readers: tables of every kind, and what can be wrong with any file."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow
import pyarrow.parquet
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

Columns: TypeAlias = dict[str, list[Any]]
Making: TypeAlias = Callable[[Path], Path]  # makes a file in a folder

fuzz = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
bytes_changed = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4
)
shares_kept = st.floats(0, 1) | st.just(1.0)


def table(path: Path, columns: Columns) -> Path:
    """Written as its ending says; columns that are shorter end in blanks."""
    longest = max(map(len, columns.values()), default=0)
    match path.name.partition(".")[2]:
        case "csv":
            path.write_text(_csv(columns, longest), "utf-8")
        case "csv.gz":
            path.write_bytes(gzip.compress(_csv(columns, longest).encode()))
        case "parquet":
            full = {
                name: cells if len(cells) == longest else [*cells, *[None] * (longest - len(cells))]
                for name, cells in columns.items()
            }
            pyarrow.parquet.write_table(pyarrow.table(full), path)
        case "npz":
            np.savez(path, **columns)  # type: ignore[arg-type]
    return path


def _csv(columns: Columns, longest: int) -> str:
    full = [[*map(str, cells), *[""] * (longest - len(cells))] for cells in columns.values()]
    return "\n".join([",".join(columns), *map(",".join, zip(*full, strict=True))])


def holding(name: str, content: str | bytes) -> Making:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def missing(name: str) -> Making:
    return lambda folder: folder / name


def folder_named(name: str) -> Making:
    def make(folder: Path) -> Path:
        (folder / name).mkdir()
        return folder / name

    return make


def cut_in_half(name: str, columns: Columns) -> Making:
    return lambda folder: damaged(table(folder / name, columns), [], 0.5)


def damaged(path: Path, changed: list[tuple[float, int]], kept: float) -> Path:
    """With other bytes at some places, and only its first part kept."""
    content = bytearray(path.read_bytes())
    for place, byte in changed:
        content[int(place * len(content))] = byte
    path.write_bytes(content[: int(kept * len(content))])
    return path


class Planted:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))
