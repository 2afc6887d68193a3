"""Read spreadsheets of Excel: the first sheet, whose first line has the names of columns."""

import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from epsilometer._extras import needs
from epsilometer._files import check_plain
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.cells import read_rows, spell_cell
from epsilometer.files.readers import Column, Content, check_header, refuse_growth, refuse_huge

_GROWS = 100  # largest ratio of expanded size to file size
_PARTS = 10_000  # members of the archive
_CELLS = 5_000_000  # a million takes about 10 s


def open_excel(path: Path) -> Content:
    """Return the names of the first sheet's columns, and a function that reads them.

    Values are those last computed; no formula is evaluated, no macro is run.

    Raises:
        UnreadableFile: It is not a plain file, grows too much, or has too many cells.
        InvalidArgument: It has no header.
    """
    with needs("openpyxl", extra="excel"):
        import openpyxl
    packed = check_plain(path).st_size
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if len(members) > _PARTS:
        raise UnreadableFile(f"Expected at most {_PARTS:,} parts in {path.name!r}, it has more.")
    size = sum(member.file_size for member in members)
    refuse_growth(path, size, packed, _GROWS)
    refuse_huge(path, size)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    sheets = book.worksheets
    if not sheets:
        raise InvalidArgument("Expected a sheet of cells, found none.")
    rows = _list_rows(path, sheets[0])
    names = [spell_cell(cell).strip() for cell in next(rows, ())]
    while names and not names[-1]:  # formats reach further than what is written
        names.pop()
    notes: tuple[str, ...] = ()
    if len(sheets) > 1:
        notes = (f"{path.name} has {len(sheets)} sheets: the first was read.",)
    return Content(tuple(names), partial(_read_columns, rows, names), notes=notes)


def _list_rows(path: Path, sheet: Any) -> Iterator[tuple[Any, ...]]:
    """Yield rows that are not empty."""
    cells = 0
    for row in sheet.iter_rows(values_only=True):
        cells += len(row)
        if cells > _CELLS:
            raise UnreadableFile(
                f"Expected at most {_CELLS:,} cells in {path.name!r}, it has more. Save it as "
                "CSV, which is faster."
            )
        if any(cell not in (None, "") for cell in row):
            yield row


def _read_columns(
    rows: Iterator[tuple[Any, ...]], names: list[str], places: Sequence[int] | None = None
) -> list[Column]:
    check_header(names)
    width = len(names)
    columns = read_rows(names, (_fit_row(row, width) for row in rows))
    return columns if places is None else [columns[place] for place in places]


def _fit_row(row: tuple[Any, ...], width: int) -> tuple[Any, ...]:
    if any(cell not in (None, "") for cell in row[width:]):
        raise InvalidArgument(
            f"Expected {width} cells in every line, as in the first, one has more."
        )
    return (*row[:width], *[None] * (width - len(row)))
