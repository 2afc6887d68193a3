"""Describe a report as blocks: what it says and draws, not how.

A builder makes one document from an audit. Page, terminal, Markdown and picture files are renderers
of its blocks, and do not depend on types of findings.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from epsilometer.core.judge import Tone

Kind: TypeAlias = Literal["line", "step", "band", "bars", "left_bars", "right_bars", "points"]
Role: TypeAlias = Literal["attack", "claim", "gdp", "bound", "law", "outside", "chance"]
NONE = "–"


class Badge(NamedTuple):
    """A word in the colour of its tone."""

    word: str
    tone: Tone


class Fact(NamedTuple):
    """A name with its value and, if it was judged, a badge."""

    name: str
    value: str
    badge: Badge | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an audit found.

    Attributes:
        finding: The evidence, in a sentence.
        badge: The verdict in one word, if there is one.
        lead: What a reader must know first.
        headline: The verdict in at most three lines of 60 columns.
        details: The evidence in full, if the headline leaves some of it out.
    """

    finding: str
    badge: Badge | None = None
    lead: str = ""
    headline: str = ""
    details: str = ""

    @property
    def tone(self) -> Tone:
        """The tone of the verdict; neutral without one."""
        return self.badge.tone if self.badge else "neutral"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a report.

    Attributes:
        title: Title of the block; may be empty.
        brief: Whether the terminal shows it too, which has less room than a page.
    """

    title: str = ""
    brief: bool = True

    @property
    def kind(self) -> str:
        """The name of its type, by which templates choose."""
        return type(self).__name__.lower()


@dataclass(frozen=True, kw_only=True)
class Facts(Block):
    """Names and values; ``style`` is the class of the list on a page."""

    rows: tuple[Fact, ...]
    style: Literal["facts", "tiles", "threat", "reasons"] = "facts"


@dataclass(frozen=True, kw_only=True)
class Notes(Block):
    """Lines: points of a list, plain sentences, or code that must not be broken."""

    lines: tuple[str, ...]
    style: Literal["list", "text", "code"] = "list"


@dataclass(frozen=True, kw_only=True)
class Table(Block):
    """Rows under their heads.

    Attributes:
        head: Titles of the columns.
        rows: One cell per column; the first cell is a name.
        note: What a reader must know first.
        numeric: Whether all cells but the first are numbers; text is wrapped.
        most: Number of rows that terminal and Markdown show.
        finding: Type of finding in the audit's JSON that provides the rows. The page reads them
            there, so that a reader can sort and search many of them.
        fields: Fields of these findings, one per column.
        total: Number of these findings.
        links: Link target of the first cell of each row, on a page; only links made by the report.
        badges: A verdict next to the first cell of each row.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    numeric: bool = True
    most: int = 20
    finding: str = ""
    fields: tuple[str, ...] = ()
    total: int = 0
    links: tuple[str, ...] = ()
    badges: tuple[Badge, ...] = ()

    @property
    def more(self) -> int:
        """Number of rows that terminal and Markdown leave out and mention."""
        return max(0, len(self.rows) - self.most) if not self.finding else 0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One bound on a scale: the interval that it leaves open, next to the claim.

    Attributes:
        name: What is measured.
        value: The bound in words.
        role: A lower bound's interval begins at ``start`` and has no end, an upper bound's ends
            there, and a reference is a mark alone.
        start: Position on the scale, in per cent of the width.
        decides: Whether a verdict may rest on it.
        valid: Whether it is a bound at all.
        badge: The verdict on this bound, if there is one.
    """

    name: str
    value: str
    role: Literal["lower", "upper", "reference"]
    start: float
    decides: bool
    valid: bool
    badge: Badge | None = None

    @property
    def remark(self) -> str:
        """What a reader must know about it, in a few words."""
        if self.role == "reference":
            return "for reference, decides nothing"
        remarks = ["" if self.decides else "for comparison", "" if self.valid else NOT_VALID]
        return ", ".join(filter(None, remarks))


NOT_VALID = "not a valid bound"


@dataclass(frozen=True, kw_only=True)
class Scale(Block):
    """Bounds under each other, and the axis they share.

    Attributes:
        rows: From top to bottom.
        ticks: (Per cent, text) pairs.
        claim: Position of the claim in per cent; None without a claim.
        claimed: The claim in words, empty without a claim.
    """

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    claim: float | None
    claimed: str


@dataclass(frozen=True)
class Axis:
    """The range of an axis; names are placed at 1, 2, … instead of numbers."""

    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        """Clip both ends to finite numbers, whatever a file holds."""
        most = sys.float_info.max
        for name in ("low", "high"):
            object.__setattr__(self, name, min(max(getattr(self, name), -most), most))

    @classmethod
    def from_zero(cls, values: Iterable[float], *, least: float = 1e-9) -> "Axis":
        """Return an axis a little beyond the largest value, so that it does not touch the frame."""
        return cls(0.0, 1.08 * max([least, *filter(math.isfinite, values)]))

    @classmethod
    def of_names(cls, names: Sequence[str]) -> "Axis":
        """Return an axis with a place for each name."""
        return cls(0.5, len(names) + 0.5, names=tuple(names))


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of a figure; points that cannot be drawn are left out.

    Attributes:
        name: Name in the legend.
        kind: ``step`` keeps each value until the next x; ``bars`` have one x more than y, their
            edges; ``left_bars`` and ``right_bars`` lie on either side of their x; ``points`` are
            joined by a thin line; a ``band`` is filled from ``y`` to ``top``.
        role: Meaning of the series, which determines its colour.
        x: Rising values of x.
        y: Values of y at these.
        top: Upper limits of a band; empty for other kinds.
        dashed: Whether the line is dashed, so that series differ in more than colour.
    """

    name: str
    kind: Kind
    role: Role
    x: tuple[float, ...]
    y: tuple[float, ...]
    top: tuple[float, ...] = ()
    dashed: bool = False

    def __post_init__(self) -> None:
        if self.kind == "bars":  # without one of the edges, the others would be others
            drawable = all(map(math.isfinite, (*self.x, *self.y)))
            columns = [self.x, self.y] if drawable else [(), ()]
        else:
            rows = zip(self.x, self.y, self.top or self.y, strict=True)
            finite = [row for row in rows if all(map(math.isfinite, row))]
            columns = [tuple(row[i] for row in finite) for i in range(3 if self.top else 2)]
        for name, column in zip(("x", "y", "top"), columns, strict=False):
            object.__setattr__(self, name, column)


@dataclass(frozen=True)
class Mark:
    """A vertical line at a value of x that matters."""

    name: str
    x: float


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart: everything a renderer needs, in words and numbers.

    Attributes:
        key: Its name in files and anchors.
        title: A few words.
        caption: How to read it.
        alt: What it shows, with its numbers, for readers who cannot see it.
        x: The horizontal axis.
        y: The vertical axis.
        series: From back to front.
        marks: Values of x that matter.
        cites: Keys of the bibliography that the curves rest on.
    """

    key: str
    title: str
    caption: str
    alt: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    cites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        there = tuple(mark for mark in self.marks if math.isfinite(mark.x))
        object.__setattr__(self, "marks", there)


@dataclass(frozen=True, kw_only=True)
class Figures(Block):
    """Figures side by side.

    Attributes:
        figures: The figures in reading order.
        key: Prefix of their keys in anchors.
        stem: Prefix of their keys in file names.
        aside: Whether they are too many for a page, and only drawn into files.
    """

    figures: tuple[Figure, ...]
    key: str = "audit"
    stem: str = ""
    aside: bool = False


@dataclass(frozen=True, kw_only=True)
class Section(Block):
    """Blocks under a title; Markdown folds them away.

    Attributes:
        verdict: The verdict, if the section has one.
        notes: What went wrong during the run.
        summary: Blocks of the first screen.
        blocks: Blocks that follow.
        key: Anchor of the section.
        folded: Whether a page shows it only on request, and Markdown not at all.
    """

    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    summary: tuple[Block, ...] = ()
    blocks: tuple[Block, ...] = ()
    key: str = ""
    folded: bool = False

    @property
    def parts(self) -> tuple[Block, ...]:
        """All blocks, those of the first screen first."""
        return (*self.summary, *self.blocks)


@dataclass(frozen=True, kw_only=True)
class Document(Section):
    """A whole report: a section, with the keys of the bibliography that it cites.

    Attributes:
        cites: Keys of ``BIBLIOGRAPHY``.
        decisive: Number of first blocks for the person who decides; the others are for engineers.
            0 if all are for everyone.
    """

    cites: tuple[str, ...] = ()
    decisive: int = 0


def find_figures(section: Section) -> Iterator[Figures]:
    """Yield all blocks of figures, in reading order."""
    for block in section.parts:
        if isinstance(block, Section):
            yield from find_figures(block)
        elif isinstance(block, Figures):
            yield block


def plot(
    name: str,
    kind: Kind,
    role: Role,
    x: ArrayLike,
    y: ArrayLike,
    dashed: bool = False,
    *,
    top: ArrayLike = (),
) -> Series:
    """Return a series rounded to the precision visible on screen, a third of the size."""
    few_x, few_y, few_top = (
        tuple(float(f"{value:.6g}") for value in np.asarray(column, np.float64))
        for column in (x, y, top)
    )
    return Series(name=name, kind=kind, role=role, x=few_x, y=few_y, top=few_top, dashed=dashed)


def plot_level(name: str, role: Role, axis: Axis, value: float) -> Series:
    """Return a dashed horizontal line over the whole axis."""
    return plot(name, "line", role, [axis.low, axis.high], [value, value], dashed=True)
