"""Read archives of arrays that NumPy wrote, never a pickled object in them."""

import os
import struct
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from epsilometer._files import check_plain
from epsilometer.errors import UnreadableFile
from epsilometer.files.readers import Column, Content, refuse_growth, refuse_huge

_GROWS = 300  # largest ratio of expanded size to file size; arrays are often zero
_MEMBERS = 1000  # arrays of an archive
_DIRECTORY = 2**20  # bytes of an archive's list of members
_END = struct.Struct("<4s4H2LH")  # the last record of a zip archive


def open_npz(path: Path) -> Content:
    """Return the names of an archive's arrays, and a function that reads them.

    Raises:
        UnreadableFile: It is not a plain file, has too many members, or grows too much.
    """
    packed = check_plain(path).st_size
    with path.open("rb") as file:
        _check_members(path, file, packed)
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    refuse_growth(path, size, packed, _GROWS)
    refuse_huge(path, size)
    with np.load(path, allow_pickle=False) as arrays:
        names = tuple(arrays.files)
    return Content(names, partial(_read_arrays, path, names), is_arrays=True)


def _read_arrays(
    path: Path, names: tuple[str, ...], places: Sequence[int] | None = None
) -> list[Column]:
    wanted = names if places is None else [names[place] for place in places]
    with np.load(path, allow_pickle=False) as arrays:
        return [Column(name, np.asarray(arrays[name])) for name in wanted]


def _check_members(path: Path, file: BinaryIO, packed: int) -> None:
    """Refuse an archive with implausibly many members before listing them."""
    file.seek(max(0, packed - _END.size - 2**16))
    tail = file.read()
    place = tail.rfind(b"PK\5\6")
    if 0 <= place <= len(tail) - _END.size:  # otherwise it is not an archive, and zipfile raises
        _, _, _, _, members, directory, *_ = _END.unpack_from(tail, place)
        if members > _MEMBERS or directory > _DIRECTORY:
            raise UnreadableFile(
                f"Expected at most {_MEMBERS:,} arrays in {path.name!r}, it has more."
            )
    file.seek(0, os.SEEK_SET)
