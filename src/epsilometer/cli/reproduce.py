"""Measure what papers published, and compare the numbers: ``epsilometer reproduce``.

A folder per paper holds its ``paper.toml`` and scripts. The file lists tables and figures: for each
a function that measures it, with quick and full settings. Rows hold what was published and what the
full call found. How the two compare is computed (``standings.py`` there).
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from epsilometer import _validate
from epsilometer._dispatch import read_sections
from epsilometer._files import write_whole
from epsilometer.cli.options import data_option, device_option, out_option
from epsilometer.cli.output import make_table, say, show
from epsilometer.core.printing import one_line
from epsilometer.errors import InvalidArgument

Setting = Literal["same", "other"]


class Stated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What someone says of a row: numbers, or words where there are none.

    Attributes:
        value: A number as printed, or several with ", " between them.
        spread: Standard deviation over runs of each, where it is known.
        runs: Number of runs it averages; 0: as the item says.
        low: The least it can be, where what it follows from is printed in few digits.
        high: The most.
        text: What is said where no number is printed.
        note: What it measures, where that differs from the row.
        seed: Seed of the runs; −1 stands for what the item says.
    """

    value: str = ""
    spread: str = ""
    runs: int = 0
    low: str = ""
    high: str = ""
    text: str = ""
    note: str = ""
    seed: int = -1

    def __str__(self) -> str:
        values, spreads = self.value.split(", "), self.spread.split(", ")
        if len(spreads) == len(values) and self.spread:
            values = [f"{one} ± {by}" for one, by in zip(values, spreads, strict=True)]
        shown = ", ".join(values) if self.value else self.text
        if self.low:
            shown += f" ({self.low} to {self.high})"
        return shown + (f" ({self.note})" if self.note else "")


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a paper's words or numbers demand of ours, where digits cannot be compared.

    References are numbers, or names of rows of the same item, whose measured values are meant.

    Attributes:
        above: Ours is larger than these.
        below: Ours is smaller than these.
        at_least: Ours is not smaller.
        at_most: Ours is not larger.
        equals: Ours is the same.
        near: Ours is within two standard errors of them.
        shape: Shape of a list: it rises, jumps after the first number and then stays, or stays.
        part: Which number of a list is compared, from 1.
    """

    above: tuple[str | float, ...] = ()
    below: tuple[str | float, ...] = ()
    at_least: tuple[str | float, ...] = ()
    at_most: tuple[str | float, ...] = ()
    equals: tuple[str | float, ...] = ()
    near: tuple[str | float, ...] = ()
    shape: Literal["", "rises", "jumps, then stays", "stays"] = ""
    part: int = 1


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published number or sentence.

    Attributes:
        name: What it is of; functions that measure call it so, too.
        published: What is printed; empty where only ours is there.
        ours: What the full call found; empty where no one has run it.
        exact: Whether no chance is in it, so that printed digits must be met.
        setting: Whether data and size are the paper's; empty stands for what the item says.
        expect: What is demanded where digits cannot be compared.
        group: Rows of one group are ordered, and tested jointly, among themselves.
        why: Where the difference comes from, in a sentence.
    """

    name: str
    published: Stated = Stated()
    ours: Stated = Stated()
    exact: bool = False
    setting: Setting | Literal[""] = ""
    expect: Expect = Expect()
    group: str = ""
    why: str


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        setting: Whether data and size are the paper's.
        published_runs: Number of runs that a published number averages.
        runs: Number of runs that ours averages.
        seed: Seed of our runs; scripts derive their streams from it, or from their settings.
    """

    name: str
    title: str
    measure: str
    quick: dict[str, Any]
    full: dict[str, Any]
    files: tuple[str, ...]
    rows: tuple[Row, ...]
    command: str = ""
    setting: Setting = "same"
    published_runs: int = 1
    runs: int = 1
    seed: int = 0


class Paper(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder.

    Attributes:
        name: As on the command line.
        key: Its key in the bibliography.
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
    items: tuple[Item, ...] = msgspec.field(name="item")
    missing: tuple[tuple[str, str], ...]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """How a paper is measured.

    Attributes:
        full: Whether to run in full, or quickly.
        data: The folder of data, if there is one.
        device: Of what is trained.
        out: Where everything goes.
    """

    full: bool
    data: Path | None
    device: str
    out: Path

    def place(self, paper: Paper) -> Path:
        """Return the folder of a paper's results."""
        return self.out / f"{paper.name}-{'full' if self.full else 'quick'}"


@click.command()
@click.argument("name", required=False)
@click.option(
    "--quick/--full",
    "quick",
    default=True,
    help="Run a quick, small version, or the published size.",
)
@click.option("--only", multiple=True, help="Reproduce only this table or figure; may be repeated.")
@data_option(envvar="EPSILOMETER_DATA")
@device_option
@out_option("epsilometer-reproductions")
def reproduce(
    name: str | None, quick: bool, only: tuple[str, ...], data: Path | None, device: str, out: Path
) -> None:
    """Reproduce a paper's results and compare them with its numbers.

    Omit NAME to list the papers. Writes published and measured numbers as a page and as JSON. With
    --quick, datasets of scikit-learn stand in for missing data. A killed call resumes in its
    folder.

    Example: epsilometer reproduce one-shot --only table-1
    """
    known = list_papers()
    if name is None:
        rows = (
            (
                p.name,
                f"{p.about}: {', '.join(i.name for i in p.items)}",
                p.quick_takes,
                p.full_needs,
            )
            for p in known.values()
        )
        table = make_table(("name", "what", "quick", "full needs"), rows)
        show(table, "epsilometer reproduce NAME [--full] [--only table-1] [--data FOLDER]")
        return
    if name not in known:
        raise InvalidArgument(f"Expected one of {', '.join(known)}, got {name!r}.")
    paper = known[name]
    items = {item.name: item for item in paper.items}
    for wanted in only:
        if wanted not in items:
            raise InvalidArgument(
                f"Expected --only to be one of {', '.join(items)}, got {wanted!r}."
            )
    call = Call(full=not quick, data=data, device=device, out=out)
    for item in paper.items:
        if not only or item.name in only:
            say(item.title)
            compared = compare_rows(item, measure(paper, item, call))
            show(make_table(("", "published", "measured", "full call found"), compared))
            page = write_results(paper, call)
    say(f"Page: {one_line(str(page))}")


def list_papers() -> dict[str, Paper]:
    """Return all that are there, by name."""
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
    """Return the paper of a file; whatever it should not hold is refused."""
    own = {"name": path.parent.name.replace("_", "-"), "folder": str(path.parent)}
    try:
        return msgspec.convert(
            {**read_sections(path), **own}, Paper, dec_hook=lambda kind, text: kind(text)
        )
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"{path}: Expected what a paper's file holds, got something else "
            f"({_validate.short(error)})."
        ) from error


def measure(paper: Paper, item: Item, call: Call) -> dict[str, str]:
    """Return the measurements of an item, by row; stored, and read by the same call later."""
    data = _find_data(item, call)
    settings = dict(item.full if call.full else item.quick)
    asked = {
        "item": item.name,
        "settings": settings,
        "device": call.device,
        "data": {} if data is None else {name: _hash_file(data / name) for name in item.files},
    }
    file = call.place(paper) / f"{item.name}.json"
    if file.exists():
        known = json.loads(file.read_text("utf-8"))
        if {name: known.get(name) for name in asked} != asked:
            raise InvalidArgument(
                f"Expected {str(file)!r} to be of this call, got one with other settings, data or "
                "device. Give another --out."
            )
        return dict(known["measured"])
    script, _, function = item.measure.partition(":")
    with import_from(paper.folder):
        found = getattr(import_module(script), function)(
            work=call.place(paper) / "work", data=data, device=call.device, **settings
        )
    _write_json(file, {**asked, "measured": found})
    return dict(found)


def _find_data(item: Item, call: Call) -> Path | None:
    """Return the folder of data, if it has what the item needs."""
    lacking = [name for name in item.files if call.data is None or not (call.data / name).is_file()]
    if lacking and call.full:
        raise InvalidArgument(
            f"Expected {', '.join(lacking)} for {item.name}, found none"
            + (" without --data." if call.data is None else f" in {str(call.data)!r}.")
        )
    return None if lacking or not item.files else call.data


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def import_from(folder: Path) -> Iterator[None]:
    """Let scripts of a folder import each other by names that other folders may use too."""
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
    """Write the page, and the same as JSON, of all that was measured there so far."""
    place = call.place(paper)
    found = {
        item.name: json.loads((place / f"{item.name}.json").read_text("utf-8"))["measured"]
        for item in paper.items
        if (place / f"{item.name}.json").exists()
    }
    _write_json(place / "results.json", found)
    text = make_page(paper, found, call)
    write_whole(place / "page.md", text.encode("utf-8"), private=False)
    return place / "page.md"


def make_page(paper: Paper, found: Mapping[str, Mapping[str, str]], call: Call) -> str:
    """Return published and measured numbers side by side, as Markdown."""
    how = "in full" if call.full else "quickly: directions, not digits"
    lines = [f"# {paper.about}", "", f"`{paper.key}`, measured {how}.", ""]
    for item in paper.items:
        if item.name not in found:
            continue
        used = item.full if call.full else item.quick
        settings = [f"{name} = {value}" for name, value in used.items()]
        if _find_data(item, call) is None and item.files:
            settings.append(f"stand-ins for {', '.join(item.files)}")
        lines += [f"## {item.title}", ""] + ([f"{'; '.join(settings)}.", ""] if settings else [])
        lines += [
            "| | published | measured here | recorded of the full call |",
            "|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(cells)} |" for cells in compare_rows(item, found[item.name])]
        lines.append("")
    return "\n".join(lines)


def compare_rows(item: Item, measured: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Return rows of what was published, then those that are only measured."""
    known = [
        (row.name, str(row.published) or "–", measured.get(row.name, "–"), str(row.ours) or "–")
        for row in item.rows
    ]
    names = {row.name for row in item.rows}
    more = [(name, "–", value, "–") for name, value in measured.items() if name not in names]
    return known + more


def _write_json(path: Path, what: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(what, ensure_ascii=False, indent=1) + "\n"
    write_whole(path, text.encode("utf-8"), private=False)
