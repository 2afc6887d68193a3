"""Folders of results with their index, and the files that say what papers published."""

import json
import os
import random
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from unittest import mock
from zlib import crc32

from click.testing import CliRunner
from msgspec import structs

from epsilometer.cli.main import main
from epsilometer.cli.reproduce import Call, Paper, make_page, read_paper
from epsilometer.errors import EpsilometerError
from epsilometer.files.history import index
from epsilometer.files.history.comparison import compare
from epsilometer.files.history.index import History, find_index
from tests.examples import a_posterior, a_release, a_series, a_shuffling, an_audit
from tests.files.history.folders import NOON
from tests.fuzz.edits import unzipped, zipped

_REPRODUCTIONS = Path(__file__).parents[2] / "reproductions"
_ODD = (None, "", "x" * 3000, -1, 2**63 - 1, 1.5, float("inf"), b"\xff\x00", "\ud7ff", "nan", "1e9")


@cache
def _files() -> dict[str, bytes]:
    audits = {
        "v1/result.json": an_audit(),
        "v2/result.json": a_shuffling(),
        "deep/er/group.json": a_series(),
        "release.json": a_release(),
        "forms.json": a_posterior(),
    }
    others = {"v1/plan.json": b"{}", "v3/plan.json": b"{}", "notes.json": b'{"no": "result"}'}
    return {name: audit.to_json().encode() for name, audit in audits.items()} | others


def _laid_out(files: dict[str, bytes], folder: Path) -> Path:
    """The files in a folder of their own, as old as ever."""
    top = folder / "results"
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    for name, content in files.items():
        path = top / name
        with suppress(OSError, ValueError):  # a name that no folder can have
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, (NOON, NOON))
    return top


def _look_anywhere(top: Path) -> index._Folder:
    """What there is, with places on the disk that follow from names, so that an index fits."""
    found = _LOOK(top)
    found.files = [
        structs.replace(file, node=crc32(file.path.encode()), touched=0) for file in found.files
    ]
    return found


_LOOK = index._look


def _told(top: Path, *, rebuild: bool = False) -> tuple[object, ...]:
    with mock.patch.object(index, "_look", _look_anywhere):
        history = History(top, rebuild=rebuild)
    return history.entries, history.unreadable, history.unfinished


def _shown(top: Path) -> None:
    """The commands say something of it, or why not."""
    for asked in (["list"], ["list", "--json"], ["trend"]):
        said = CliRunner().invoke(main, ["runs", asked[0], str(top), *asked[1:]])
        if said.exception is not None and not isinstance(said.exception, SystemExit):
            raise said.exception
        assert said.exit_code == 0


class indexes:  # noqa: N801 - a namespace
    """The index of a folder that is as it was."""

    @staticmethod
    @cache
    def valid() -> list[bytes]:
        with tempfile.TemporaryDirectory() as place:
            top = _laid_out(_files(), Path(place))
            _told(top)
            return [_index_of(top).read_bytes()]

    @staticmethod
    def read(data: bytes, folder: Path) -> None:
        top = _laid_out(_files(), folder)
        _index_of(top).write_bytes(data)
        found = _told(top)
        assert found == _told(top, rebuild=True)  # whatever the index says
        if len(data) % 8 == 3:
            top = _laid_out(_files(), folder)
            _index_of(top).write_bytes(data)
            _shown(top)


def _index_of(top: Path) -> Path:
    found = find_index(top)
    assert found is not None
    return found


def in_index(data: bytes, rng: random.Random) -> bytes:
    """An index still, but for its sum: other values in its records."""
    head, _, body = data.partition(b"\n")
    try:
        records = json.loads(body)
        record = rng.choice(records)
        held = rng.choice([record, record[0], *record[1]])
        key = rng.choice(list(held)) if isinstance(held, dict) else rng.randrange(len(held))
        held[key] = rng.choice((rng.choice(_ODD), rng.randrange(100)))
    except (ValueError, IndexError, TypeError):  # no index any more
        return data
    changed = json.dumps(records, default=repr).encode("utf-8", "surrogatepass")
    return head + b"\n" + changed


class folders:  # noqa: N801 - a namespace
    """Files that an index is made of."""

    @staticmethod
    def valid() -> list[bytes]:
        return [zipped(_files())]

    @staticmethod
    def read(data: bytes, folder: Path) -> None:
        top = _laid_out(unzipped(data), folder)
        found = _told(top)
        assert _told(top) == found  # by the index
        for first, second in (("v1", "v2"), ("v2", "release.json")):
            with suppress(EpsilometerError):
                compare(top / first, top / second)
        if len(data) % 8 == 3:
            _shown(top)


class published:  # noqa: N801 - a namespace
    """``paper.toml`` of the reproductions."""

    @staticmethod
    @cache
    def valid() -> list[bytes]:
        return [path.read_bytes() for path in sorted(_REPRODUCTIONS.glob("*/paper.toml"))]

    @staticmethod
    def read(data: bytes, folder: Path) -> None:
        path = folder / "a_paper" / "paper.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        paper = read_paper(path)
        assert isinstance(paper, Paper)
        assert all(isinstance(word, str) for item in paper.items for word in item.files)
        call = Call(full=True, data=None, device="cpu", out=folder)
        without_files = [structs.replace(item, files=()) for item in paper.items]
        measured = {item.name: {row.name: "1" for row in item.rows} for item in paper.items}
        shown = make_page(structs.replace(paper, items=tuple(without_files)), measured, call)
        assert all(item.title in shown for item in paper.items)
