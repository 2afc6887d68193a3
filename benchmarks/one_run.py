"""Compares what our bound of one run proves with that of jax-privacy, for 100 to 10,000 canaries.

    python benchmarks/one_run.py          # all, anew; writes one_run.csv and one_run.md
    python benchmarks/one_run.py page     # the page again, nothing measured

Both tools get the same scores and the same coins.
"""

import csv
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from measurement import ask
from numpy.typing import NDArray
from sizes import ARGUMENTS, TINY, choose_size, write_page

from epsilometer.core.scores import Scores
from epsilometer.stats.estimators import epsilon_lower_bound

FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
_HERE = Path(__file__).resolve().parent
RAW, PAGE = _HERE / "one_run.csv", _HERE / "one_run.md"
AUDITS = choose_size(30, 2)
DELTA = 1e-5
CANARIES = choose_size((100, 1_000, 10_000), (40,))
COLUMNS = ("method", "law", "canaries", "audits", "ours", "theirs")
_TEXT = """# Power of one run, compared with jax-privacy

Written by `make comparison`; do not edit. Mean bounds of {audits} runs at δ = 10⁻⁵ and 95 %
confidence: ours, `epsilon_lower_bound(Scores(inside, outside, design="coins"), delta=1e-5)`, and
`epsilon_one_run(0.05, 1e-5)` of jax-privacy 2.0, the better of its default, which divides the error
by the corners of the convex hull, and `Split(seed=0)`. For Gaussian mechanisms also
`method="one_run_fdp"` and `epsilon_one_run_fdp`, likewise. Each canary is in by a fair coin; both
get the same scores and coins. What was measured is kept in `benchmarks/one_run.csv`.

{summary}

| method | law | canaries | ours | jax-privacy | ours / theirs |
| --- | --- | --- | --- | --- | --- |
{rows}
"""


def _respond(epsilon: float, silent: float = 0.0) -> Callable[..., FloatArray]:
    """Randomised response, but for a share that says nothing."""

    def draw(rng: np.random.Generator, member: BoolArray) -> FloatArray:
        honest = rng.random(member.size) < 1 / (1 + math.exp(-epsilon))
        said = np.where(member == honest, 1.0, -1.0)
        return np.where(rng.random(member.size) < silent, 0.0, said)

    return draw


def _memorise(share: float) -> Callable[..., FloatArray]:
    """Some canaries are known for certain; of the others nothing is."""

    def draw(rng: np.random.Generator, member: BoolArray) -> FloatArray:
        known = member & (rng.random(member.size) < share)
        return rng.random(member.size) + 9.0 * known

    return draw


LAWS: dict[str, Callable[..., FloatArray]] = {
    "all told apart": lambda rng, member: member + rng.random(member.size) / 2,
    "Gaussian μ = 1": lambda rng, member: member + rng.normal(size=member.size),
    "Gaussian μ = 3": lambda rng, member: 3.0 * member + rng.normal(size=member.size),
    "randomised response ε = 1": _respond(1.0),
    "randomised response ε = 2, 70 % silent": _respond(2.0, 0.7),
    "a tenth memorised": _memorise(0.1),
}
GAUSSIAN = ("all told apart", "Gaussian μ = 1", "Gaussian μ = 3")
METHODS = {"one_run": tuple(LAWS), "one_run_fdp": GAUSSIAN}
Row: TypeAlias = tuple[str, str, int, int, float, float]


def main() -> None:
    """Measure and write the page."""
    if "page" not in ARGUMENTS:
        rows = [
            _measure(method, law, canaries)
            for method, laws in METHODS.items()
            for law in laws
            for canaries in CANARIES
        ]
        if TINY:
            write_page(PAGE, page(rows))
            return
        with RAW.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(
                [*setting, f"{ours:.6g}", f"{theirs:.6g}"] for *setting, ours, theirs in rows
            )
    write_page(PAGE, page(read_rows()))


def draw(law: str, canaries: int) -> list[tuple[FloatArray, BoolArray]]:
    """Return scores and coins of every audit."""
    rng = np.random.default_rng([canaries, *law.encode()])
    coins = [rng.random(canaries) < 0.5 for _ in range(AUDITS)]
    return [(LAWS[law](rng, member), member) for member in coins]


def measure_ours(law: str, canaries: int, method: str = "one_run") -> float:
    """Return the mean of our bound."""
    drawn = draw(law, canaries)
    found = [
        epsilon_lower_bound(
            Scores(scores[member], scores[~member], design="coins"), delta=DELTA, method=method
        ).epsilon
        for scores, member in drawn
    ]
    return float(np.mean(found))


def _measure(method: str, law: str, canaries: int) -> Row:
    theirs = math.nan
    if not TINY:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "scores.npz")
            scores, member = (np.stack(side) for side in zip(*draw(law, canaries), strict=True))
            np.savez(file, scores=scores, member=member)
            answers = ask("jax_privacy", f"power_{method}", f"{file}:{AUDITS}")["answers"]
        theirs = max(float(np.mean([answer[call] for answer in answers])) for call in answers[0])
    return method, law, canaries, AUDITS, measure_ours(law, canaries, method), theirs


def read_rows() -> list[Row]:
    """Return what was measured."""
    with RAW.open(encoding="utf-8", newline="") as file:
        return [
            (method, law, int(canaries), int(audits), float(ours), float(theirs))
            for method, law, canaries, audits, ours, theirs in list(csv.reader(file))[1:]
        ]


def page(rows: list[Row]) -> str:
    """Return the page of what was measured."""
    ratios = [ours / theirs if theirs > 0 else math.inf for *_, ours, theirs in rows]
    least = min(range(len(rows)), key=ratios.__getitem__)
    summary = (
        f"In {sum(ratio >= 1 for ratio in ratios)} of {len(rows)} settings ours is at least as "
        f"large; the least ratio is {ratios[least]:.3f} (`{rows[least][0]}`, {rows[least][1]}, "
        f"{rows[least][2]:,} canaries)."
    )
    lines = (
        f"| `{method}` | {law} | {canaries:,} | {ours:.3f} | {theirs:.3f} | "
        + (f"{ratio:.3f} |" if math.isfinite(ratio) else "– |")
        for (method, law, canaries, _, ours, theirs), ratio in zip(rows, ratios, strict=True)
    )
    return _TEXT.format(audits=rows[0][3], summary=summary, rows="\n".join(lines))


if __name__ == "__main__":
    main()
