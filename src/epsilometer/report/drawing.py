"""Draw figures as pictures, for papers and slides: PNG and SVG, the same bytes every time.

One description (``core.document.Figure``) is drawn by two libraries. No single one does both
offline: the page needs a small library in the browser that zooms, reads off values and hides
curves (uPlot, 50 kB, draws on a canvas); a paper needs vector files without a browser (matplotlib,
optional, whose own pages are larger than a whole report). Neither knows what an audit is.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from epsilometer._extras import needs
from epsilometer.core.document import Axis, Document, Figure, Mark, Series, find_figures
from epsilometer.core.printing import one_line
from epsilometer.report.tones import COLOURS

with needs("matplotlib", extra="figures"):
    import matplotlib as mpl
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

Format: TypeAlias = Literal["png", "svg"]
FORMATS: tuple[Format, ...] = ("png", "svg")
_DOTS = 200
_BAR = 0.4  # of the way from one to the next
_STYLE = Path(__file__).with_name("figures.mplstyle")


def draw(figure: Figure, kind: Format) -> bytes:
    """Return the figure as the bytes of a PNG or SVG file."""
    with _use_style():
        canvas = Canvas(layout="constrained")
        axes = canvas.add_subplot()
        for series in figure.series:
            _add(axes, series)
        for mark in figure.marks:
            _add_mark(axes, mark)
        _dress(axes, figure)
        written = io.BytesIO()
        # The date would differ each time; who made it is not part of what it shows.
        canvas.savefig(
            written,
            format=kind,
            dpi=_DOTS,
            metadata={"Date": None, "Creator": None} if kind == "svg" else {"Software": None},
        )
    return written.getvalue()


def save_figures(
    document: Document, folder: Path, *, formats: tuple[Format, ...] = FORMATS
) -> tuple[Path, ...]:
    """Write every figure of a document into ``folder``, which is created; return the files.

    Files are called ``tradeoff.svg``; of several views ``1-tradeoff.svg``, after the view's place,
    and ``views-1.svg``, where several are side by side.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for block in find_figures(document):
        for figure in block.figures:
            for kind in formats:
                path = folder / f"{block.stem}{figure.key}.{kind}"
                path.write_bytes(draw(figure, kind))
                written.append(path)
    return tuple(written)


@contextmanager
def _use_style() -> Iterator[None]:
    with mpl.rc_context(fname=_STYLE), warnings.catch_warnings():
        # A name may hold letters that the font lacks; a box in their place is good enough.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def _add(axes: Axes, series: Series) -> None:
    colour = COLOURS[series.role][0]
    line: dict[str, Any] = {"color": colour, "linestyle": _dashes(series)}
    match series.kind:
        case "band":
            axes.fill_between(series.x, series.y, series.top, color=colour, alpha=0.18, linewidth=0)
        case "bars":
            axes.stairs(series.y, series.x, fill=True, color=colour, alpha=0.3)
            axes.stairs(series.y, series.x, color=colour, linewidth=1)
        case "left_bars" | "right_bars":
            width = _BAR if series.kind == "right_bars" else -_BAR
            edge: Any = {"edgecolor": colour, "linewidth": 1, "align": "edge"}
            axes.bar(series.x, series.y, width, facecolor=to_rgba(colour, 0.3), **edge)
        case "step":
            axes.plot(series.x, series.y, drawstyle="steps-post", linewidth=1.8, **line)
        case "points":
            axes.plot(series.x, series.y, marker="o", markersize=4.5, linewidth=1.5, **line)
        case "line":
            width = 1.0 if series.role == "chance" else 1.6
            axes.plot(series.x, series.y, linewidth=width, **line)


def _add_mark(axes: Axes, mark: Mark) -> None:
    axes.axvline(mark.x, color="#545d69", linewidth=1, linestyle=(0, (4, 3)))
    top = axes.get_xaxis_transform()
    axes.text(mark.x, 1.0, f" {mark.name}", color="#545d69", va="top", transform=top)


def _dress(axes: Axes, figure: Figure) -> None:
    """Axes, title, legend."""
    for name, axis in (("x", figure.x), ("y", figure.y)):
        _scale(axes, name, axis)
    axes.set_title(figure.title)
    handles = [_handle(series) for series in figure.series]
    legend = axes.legend(
        handles,
        [str(i) for i in range(len(handles))],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=2,
        frameon=False,
    )
    # Set afterwards: as labels, names with a leading "_" would be left out, and "$" read as TeX.
    names = [series.name for series in figure.series]
    for text, series_name in zip(legend.get_texts(), names, strict=True):
        _plain(text, series_name)


def _scale(axes: Axes, name: str, axis: Axis) -> None:
    if axis.log:
        axes.set(**{f"{name}scale": "log"})
    axes.set(**{f"{name}lim": (axis.low, axis.high), f"{name}label": axis.title})
    if axis.names:  # of users: no TeX in them, and none in the title then
        ruler = axes.xaxis if name == "x" else axes.yaxis
        ruler.label.set_parse_math(False)
        ruler.set_ticks(range(1, len(axis.names) + 1), axis.names, parse_math=False)


def _dashes(series: Series) -> Any:
    return (0, (5, 2.5)) if series.dashed else "solid"


def _plain(text: Text, name: str) -> None:
    text.set_parse_math(False)
    text.set_text(one_line(name, 60))


def _handle(series: Series) -> Artist:
    colour = COLOURS[series.role][0]
    if series.kind in ("band", "bars", "left_bars", "right_bars"):
        return Patch(facecolor=colour, alpha=0.3)
    return Line2D(
        [],
        [],
        color=colour,
        linestyle=_dashes(series),
        marker="o" if series.kind == "points" else "none",
    )
