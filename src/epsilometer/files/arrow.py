"""Read Arrow files and streams, which Feather files are too."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from epsilometer._extras import needs
from epsilometer._files import check_plain
from epsilometer.errors import InvalidArgument
from epsilometer.files.arrow_columns import make_column
from epsilometer.files.readers import Column, Content, refuse_growth, refuse_huge

_GROWS = 300  # largest ratio of expanded size to file size
_MAGIC = b"ARROW1"


def open_arrow(path: Path) -> Content:
    """Return the names of a file's columns, and a function that reads them.

    Raises:
        UnreadableFile: It is not a regular file, or expands too much.
    """
    with needs("pyarrow", extra="parquet"):
        import pyarrow
        import pyarrow.ipc
    packed = check_plain(path).st_size
    refuse_huge(path, packed)
    with path.open("rb") as file:
        is_file = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        opened = pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)
        batches: list[Any] = []
        size = 0
        for number in range(opened.num_record_batches) if is_file else iter(int, 1):
            try:
                batch = opened.get_batch(number) if is_file else opened.read_next_batch()
            except StopIteration:
                break
            size += batch.nbytes
            refuse_growth(path, size, packed, _GROWS)
            refuse_huge(path, size)
            batches.append(batch)
    table = pyarrow.Table.from_batches(batches, schema=opened.schema)
    return Content(tuple(table.schema.names), partial(_read_columns, table), rows=table.num_rows)


def _read_columns(table: Any, places: Sequence[int] | None = None) -> list[Column]:
    names = table.schema.names
    if not names:
        raise InvalidArgument("Expected columns, found none.")
    wanted = range(len(names)) if places is None else places
    return [make_column(names[place], table.column(place)) for place in wanted]
