"""Look into packed files before they are unpacked: some are made to fill a machine.

A file of a few kilobytes can unpack to terabytes. What is read is bounded by what it becomes, by
how many times it grows, and by how many parts it has; each check reads a few bytes, or counts
while it unpacks and stops at the limit.
"""

import gzip
import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from epsilometer._extras import needs
from epsilometer._files import check_plain
from epsilometer.errors import UnreadableFile

_TEXT_GROWS = 100  # times its size that a text may become; tables of people become 5 to 20
_ARRAYS_GROW = 300  # which are often zero
_SMALL = 256 * 2**20  # bytes below which growth harms nobody
_BLOCK = 2**20  # bytes that are looked at together; every line of a text ends in one or the next
_MEMBERS = 1000  # arrays of an archive
_DIRECTORY = 2**20  # bytes of an archive's list of members
_FOOTER = 16 * 2**20  # bytes that describe a Parquet file; 10,000 columns need 2
_END = struct.Struct("<4s4H2LH")  # the last record of a zip archive


def measure_text(path: Path, *, largest: int) -> int:
    """Return the bytes of a text file, unpacked where it is gzipped; ``largest`` ends the count.

    Raises:
        UnreadableFile: It is no plain file, holds bytes that no text has, a line without an end, or
            grows too much.
    """
    packed = check_plain(path).st_size
    if path.suffix.lower() != ".gz" and packed > largest:
        return packed
    size = 0
    with _open_bytes(path) as file:
        while size <= largest and (block := file.read(_BLOCK)):
            size += len(block)
            if b"\0" in block:
                raise UnreadableFile(f"Expected text in {path.name!r}, found bytes that are none.")
            if len(block) == _BLOCK and b"\n" not in block and b"\r" not in block:
                raise UnreadableFile(
                    f"Expected lines of at most {_BLOCK:,} bytes in {path.name!r}, found a longer "
                    "one."
                )
            _refuse_growth(path, size, packed, _TEXT_GROWS)
    return size


def measure_archive(path: Path) -> int:
    """Return the bytes of all arrays of an npz, unpacked.

    Raises:
        UnreadableFile: It is no plain file, has too many members, or grows too much.
    """
    packed = check_plain(path).st_size
    with path.open("rb") as file:
        _check_members(path, file, packed)
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    _refuse_growth(path, size, packed, _ARRAYS_GROW)
    return size


def open_parquet(path: Path, *, width: int = 8) -> Any:
    """Open a Parquet file that does not grow too much; texts stay numbers of a list of words.

    Args:
        path: The file.
        width: Bytes that a cell becomes.

    Raises:
        UnreadableFile: It is no plain file, or grows too much.
    """
    with needs("pyarrow", extra="parquet"):
        import pyarrow.parquet
    packed = check_plain(path).st_size
    with path.open("rb") as file:
        file.seek(max(0, packed - 8))
        end = file.read(8)
    if end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") > _FOOTER:
        raise UnreadableFile(
            f"Expected a description of at most {_FOOTER:,} bytes in {path.name!r}, got more."
        )
    found = pyarrow.parquet.ParquetFile(path)
    about = found.metadata
    groups = (about.row_group(number) for number in range(about.num_row_groups))
    unpacked = sum(max(0, group.total_byte_size) for group in groups)
    size = max(unpacked, width * about.num_rows * about.num_columns)
    _refuse_growth(path, size, packed, _ARRAYS_GROW)
    texts = [
        column.name
        for column in found.schema_arrow
        if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
    ]
    return pyarrow.parquet.ParquetFile(path, read_dictionary=texts)


def _refuse_growth(path: Path, size: int, packed: int, times: int) -> None:
    if size > _SMALL and size > times * packed:
        raise UnreadableFile(
            f"Expected {path.name!r} to become at most {times} times as large as it is, it has "
            f"{packed:,} bytes and becomes {size / 2**20:,.0f} MiB or more. Unpack it yourself if "
            "you trust it."
        )


@contextmanager
def _open_bytes(path: Path) -> Iterator[BinaryIO]:
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as file:
        yield file


def _check_members(path: Path, file: BinaryIO, packed: int) -> None:
    """Refuse an archive with more members than anybody saves, before they are listed."""
    file.seek(max(0, packed - _END.size - 2**16))
    tail = file.read()
    place = tail.rfind(b"PK\5\6")
    if 0 <= place <= len(tail) - _END.size:  # otherwise it is no archive, and zipfile says so
        _, _, _, _, members, directory, *_ = _END.unpack_from(tail, place)
        if members > _MEMBERS or directory > _DIRECTORY:
            raise UnreadableFile(
                f"Expected at most {_MEMBERS:,} arrays in {path.name!r}, it has more."
            )
    file.seek(0, os.SEEK_SET)
