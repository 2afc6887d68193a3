"""What was published, what is measured: a folder a paper, each with its ``paper.toml``.

A paper's file lists its tables and figures: for each a function of the folder's scripts that
measures it, with settings for a quick call and a full one, and its rows: what was published, what
the full call has found, and how the two stand to each other. Scripts do the work; here it is only
found, kept and shown.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from epsilometer import _validate
from epsilometer._dispatch import read_sections
from epsilometer._files import write_whole
from epsilometer.errors import InvalidArgument

STANDINGS = ("within error", "direction only", "not reproduced")
OURS_ALONE = "ours alone"  # the standing of what no paper has
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Row:
    """A published number or sentence.

    Attributes:
        name: What it is of; functions that measure call it so, too.
        published: As printed.
        ours: What the full call found; empty where nobody has run it.
        standing: One of ``STANDINGS``, or ``OURS_ALONE``.
        why: Where the difference comes from, in a sentence.
    """

    name: str
    published: str
    ours: str
    standing: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or a figure.

    Attributes:
        name: As ``table-1``.
        title: Where it stands and what it shows.
        measure: ``script:function`` of the folder, called with the settings and with ``work`` (a
            folder to keep things in), ``data`` (a folder or None) and ``device``; gives
            measured text by row.
        quick: Settings of the quick call.
        full: Settings of the full one.
        files: Data that the full call needs; the quick one takes stand-ins without them.
        rows: What was published.
        command: How ``ours`` was made, where it was not by the full call.
    """

    name: str
    title: str
    measure: str
    quick: Mapping[str, Any]
    full: Mapping[str, Any]
    files: tuple[str, ...]
    rows: tuple[Row, ...]
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A folder.

    Attributes:
        name: As on the command line.
        key: In the bibliography.
        about: What is reproduced, in a line.
        quick_takes: How long the quick call is.
        full_needs: What the full one needs.
        folder: Where its scripts are.
        items: Its tables and figures.
        missing: What cannot be measured here, and why.
    """

    name: str
    key: str
    about: str
    quick_takes: str
    full_needs: str
    folder: Path
    items: tuple[Item, ...]
    missing: tuple[tuple[str, str], ...]


def papers() -> dict[str, Paper]:
    """All that are there, by name."""
    shipped = Path(__file__).parents[1] / "_reproductions"  # in a wheel
    root = shipped if shipped.is_dir() else Path(__file__).parents[3] / "reproductions"
    found = [read_paper(path) for path in sorted(root.glob("*/paper.toml"))]
    if not found:
        raise InvalidArgument(
            f"Expected scripts of reproductions in {str(root)!r}, found none. Install the wheel, "
            "or a checkout with pip install -e."
        )
    return {paper.name: paper for paper in found}


def read_paper(path: Path) -> Paper:
    """The paper of a file; whatever it should not hold is refused."""
    known = read_sections(path)
    name = path.parent.name.replace("_", "-")
    try:
        items = tuple(_item(**_of(dict, item)) for item in _of(list, known.pop("item")))
        missing = tuple((_of(str, what), _of(str, why)) for what, why in known.pop("missing"))
        return Paper(name=name, folder=path.parent, items=items, missing=missing, **_texts(known))
    except (KeyError, TypeError, ValueError) as error:
        said = _validate.short(error)
        raise InvalidArgument(
            f"{path}: Expected what a paper's file holds, got something else ({said})."
        ) from error


def _item(*, quick: Any, full: Any, files: Any, rows: Any, **texts: Any) -> Item:
    return Item(
        quick=_of(dict, quick),
        full=_of(dict, full),
        files=tuple(_of(str, file) for file in _of(list, files)),
        rows=tuple(_row(*_of(list, row)) for row in _of(list, rows)),
        **_texts(texts),
    )


def _row(*cells: Any) -> Row:
    row = Row(*(_of(str, cell) for cell in cells))
    if row.standing not in (*STANDINGS, OURS_ALONE):
        raise ValueError(f"no standing: {row.standing}")
    return row


def _texts(named: Mapping[str, Any]) -> dict[str, str]:
    return {name: _of(str, value) for name, value in named.items()}


def _of(kind: type[_Kind], value: Any) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}: {value!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class Call:
    """How a paper is measured.

    Attributes:
        full: In full, or quickly.
        data: The folder of data, if there is one.
        device: Of what is trained.
        out: Where everything goes.
    """

    full: bool
    data: Path | None
    device: str
    out: Path

    def place(self, paper: Paper) -> Path:
        """The folder of a paper's results."""
        return self.out / f"{paper.name}-{'full' if self.full else 'quick'}"


def measure(paper: Paper, item: Item, call: Call) -> dict[str, str]:
    """What is measured of an item, by row; kept, and found again by the same call."""
    data = _data(item, call)
    settings = dict(item.full if call.full else item.quick)
    asked = {
        "item": item.name,
        "settings": settings,
        "device": call.device,
        "data": {} if data is None else {name: _digest(data / name) for name in item.files},
    }
    kept = call.place(paper) / f"{item.name}.json"
    if kept.exists():
        known = json.loads(kept.read_text("utf-8"))
        if {name: known.get(name) for name in asked} != asked:
            raise InvalidArgument(
                f"Expected {str(kept)!r} to be of this call, got one with other settings, data or "
                "device. Give another --out."
            )
        return dict(known["measured"])
    script, _, function = item.measure.partition(":")
    with _importable(paper.folder):
        found = getattr(import_module(script), function)(
            work=call.place(paper) / "work", data=data, device=call.device, **settings
        )
    _write(kept, {**asked, "measured": found})
    return dict(found)


def _data(item: Item, call: Call) -> Path | None:
    """The folder, if it has what the item needs."""
    lacking = [name for name in item.files if call.data is None or not (call.data / name).is_file()]
    if lacking and call.full:
        raise InvalidArgument(
            f"Expected {', '.join(lacking)} for {item.name}, found none"
            + (" without --data." if call.data is None else f" in {str(call.data)!r}.")
        )
    return None if lacking or not item.files else call.data


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Scripts of a folder import each other by name; another folder's may have the same names."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder:
                del sys.modules[name]


def write_results(paper: Paper, call: Call) -> Path:
    """Writes the page, and the same as JSON, of all that was measured there so far."""
    place = call.place(paper)
    found = {
        item.name: json.loads((place / f"{item.name}.json").read_text("utf-8"))["measured"]
        for item in paper.items
        if (place / f"{item.name}.json").exists()
    }
    _write(place / "results.json", found)
    text = page(paper, found, call)
    write_whole(place / "page.md", text.encode("utf-8"), private=False)
    return place / "page.md"


def page(paper: Paper, found: Mapping[str, Mapping[str, str]], call: Call) -> str:
    """Published beside measured, as Markdown."""
    how = "in full" if call.full else "quickly: directions, not digits"
    lines = [f"# {paper.about}", "", f"`{paper.key}`, measured {how}.", ""]
    for item in paper.items:
        if item.name not in found:
            continue
        used = item.full if call.full else item.quick
        shown = [f"{name} = {value}" for name, value in used.items()]
        if _data(item, call) is None and item.files:
            shown.append(f"stand-ins for {', '.join(item.files)}")
        lines += [f"## {item.title}", ""] + ([f"{'; '.join(shown)}.", ""] if shown else [])
        lines += [
            "| | published | measured here | recorded of the full call |",
            "|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(cells)} |" for cells in side_by_side(item, found[item.name])]
        lines.append("")
    return "\n".join(lines)


def side_by_side(item: Item, measured: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Rows of what was published, then those that are only measured."""
    known = [
        (row.name, row.published, measured.get(row.name, "–"), row.ours or "–") for row in item.rows
    ]
    names = {row.name for row in item.rows}
    more = [(name, "–", value, "–") for name, value in measured.items() if name not in names]
    return known + more


def _write(path: Path, what: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(what, ensure_ascii=False, indent=1) + "\n"
    write_whole(path, text.encode("utf-8"), private=False)
