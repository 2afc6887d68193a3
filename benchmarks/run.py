"""Times epsilometer beside its peers and writes ``benchmarks/results.md``: ``make speed``."""

import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measurement import OURS, Measurement, command_seconds, measure
from results import HEADERS, Row, page
from rich.console import Console
from rich.live import Live
from rich.table import Table
from sizes import TINY, choose_size, write_page

_PAGE = Path(__file__).resolve().parent / "results.md"
_TABLES = ("12,58,200,200", "923,19,982,76", "100,100,900,900", "489,1,510,0")  # FN, FP, TN, TP
_NONE = "–"
_SHOWN = HEADERS.index("met?") + 1  # what fits a terminal; the page has it all


@dataclass(frozen=True, kw_only=True)
class Question:
    """The same asked of both tools.

    Attributes:
        title: In words.
        size: See ``stopwatch.arguments``.
        ours: Its name in ``measure_epsilometer.py``.
        peer: Which tool.
        theirs: Its name in ``measure_<peer>.py``.
        target: How many times faster we mean to be.
    """

    title: str
    size: str
    ours: str
    peer: str
    theirs: str
    target: float


def questions() -> Iterator[Question]:
    """All that are asked of both, in the order of the table."""
    for title, ours, target in (
        ("default bound", "default_bound", 10),
        ("`rule=Best()`", "best_threshold", 3),
    ):
        for n in choose_size((10**6, 10**7), (100,)):
            yield Question(
                title=title,
                size=str(n),
                ours=ours,
                peer="jax_privacy",
                theirs="clopper_pearson",
                target=target,
            )
    yield Question(
        title="one run",
        size=str(choose_size(10**5, 100)),
        ours="one_run",
        peer="jax_privacy",
        theirs="one_run",
        target=20,
    )
    for table in choose_size(_TABLES, _TABLES[:1]):
        yield Question(
            title="joint beta (FN, FP, TN, TP)",
            size=table,
            ours="joint_beta",
            peer="privacy_estimates",
            theirs="joint_beta",
            target=100,
        )


def compare(question: Question) -> Row:
    """Asks both and writes down what they said."""
    ours = measure(OURS, question.ours, question.size)
    # At a tiny size peers are not asked, and ours stands in the place of theirs.
    theirs = ours if TINY else measure(question.peer, question.theirs, question.size)
    ratio = theirs.cpu_seconds / ours.cpu_seconds
    return Row(
        question=question.title,
        n=_size_in_words(question.size),
        ours=_seconds(ours.cpu_seconds),
        peer=f"{question.peer.replace('_', '-')} {theirs.version}",
        theirs=_seconds(theirs.cpu_seconds),
        ratio=f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×",
        target=f"≥ {question.target:g}×",
        met=_yes(ratio >= question.target),
        memory_ours=_memory(ours),
        memory_peer=_memory(theirs),
        epsilon_ours=f"{ours.epsilon:.4f}",
        epsilon_peer=f"{theirs.epsilon:.4f}",
    )


def time_commands() -> Iterator[Row]:
    """CPU seconds of the command line from its start to its end."""
    tool = str(Path(sys.executable).with_name(OURS))
    with tempfile.TemporaryDirectory() as folder:
        scores = Path(folder, "scores.csv")
        scores.write_text(_scores_as_csv(5_000))
        estimate = [tool, "estimate", str(scores), "--delta", "1e-5"]
        yield _time_command("`epsilometer --help`", [tool, "--help"], size=_NONE, target=0.3)
        yield _time_command("`epsilometer estimate`", estimate, size="5,000", target=1.0)


def memory_sentence(title: str, ours: str) -> str:
    """Whether a call on 10⁷ scores a side stays within twice their size."""
    used = measure(OURS, ours, str(choose_size(10**7, 100)))
    return (
        f"Peak memory of {title} at n = 10^7, at most 2 sizes of the scores: "
        f"{used.memory:.2f} with the scores, {_yes(used.memory <= 2)}; "
        f"{used.memory_on_top:.2f} on top of them, {_yes(used.memory_on_top <= 2)}."
    )


def difference_sentence() -> str:
    """How far our joint-beta bounds are from the peer's, at both of its tolerances."""
    default, tight = _largest_difference("joint_beta"), _largest_difference("joint_beta_tight")
    return (
        f"Joint beta, largest difference in ε from privacy-estimates: {default:.1e} at its default "
        f"tolerance (0.01); {tight:.1e} at its own of 1e-6, where at most 1e-3 is the target, "
        f"{_yes(tight <= 1e-3)}."
    )


def main() -> None:
    """Measures everything, showing the table as it grows, and writes the page."""
    table, rows = Table(*HEADERS[:_SHOWN]), []
    with Live(table, console=Console(stderr=True)) as live:
        for question in questions():
            live.console.print(f"{question.title}, {_size_in_words(question.size)} …")
            rows.append(compare(question))
            table.add_row(*rows[-1][:_SHOWN])
        for row in time_commands():
            rows.append(row)
            table.add_row(*row[:_SHOWN])
        live.console.print("joint beta at a tight tolerance, which takes minutes …")
        further = [
            memory_sentence("the default bound", "default_bound"),
            memory_sentence("`rule=Best()`", "best_threshold"),
            *([] if TINY else [difference_sentence()]),
        ]
        for sentence in further:
            live.console.print(sentence)
    write_page(_PAGE, page(rows, further))


def _largest_difference(theirs: str) -> float:
    return max(
        abs(
            measure(OURS, "joint_beta", table).epsilon
            - measure("privacy_estimates", theirs, table).epsilon
        )
        for table in _TABLES
    )


def _time_command(title: str, command: list[str], *, size: str, target: float) -> Row:
    timed = [command_seconds(command) for _ in range(choose_size(4, 1))]
    timed = timed[1:] or timed  # the first compiles the modules
    seconds = [value for value in timed if value is not None]
    ran = len(seconds) == len(timed)
    median = statistics.median(seconds) if ran else float("nan")
    return Row(*[_NONE] * len(HEADERS))._replace(
        question=title,
        n=size,
        ours=_seconds(median) if ran else "not available",
        target=f"< {target:g} s",
        met=_yes(median < target) if ran else "not available",
    )


def _scores_as_csv(n: int) -> str:
    rng = random.Random(0)
    lines = [f"{rng.gauss(member, 1)!r},{member}" for member in (1, 0) for _ in range(n)]
    return "\n".join(["score,member", *lines]) + "\n"


def _size_in_words(size: str) -> str:
    return size.replace(",", ", ") if "," in size else f"10^{len(size) - 1}"


def _seconds(value: float) -> str:
    return f"{value:.3g}"


def _memory(used: Measurement) -> str:
    if not used.scores_bytes:
        return _NONE
    return f"{used.memory:.2f} ({used.memory_on_top:.2f})"


def _yes(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
