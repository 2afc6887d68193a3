"""Writes tests/calibration/rates.md, and in short docs/calibration.md: ``make calibration``.

With ``python -m tests.calibration METHOD ...`` the rows of these methods are counted; the others
stay as they are. ``python -m tests.calibration page`` writes the short page again.
"""

import sys
import time
from pathlib import Path

import joblib
import numpy as np

from tests import oracles
from tests.calibration import tight
from tests.calibration.counting import OTHERS, OURS, SHRINK, Bound, bounds_of
from tests.calibration.situations import DELTA, SITUATIONS, Situation

RATES = Path(__file__).parent / "rates.md"
PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"
SHORT = """# Calibration: how often is a bound wrong?

A bound that says 95 % must exceed the true ε in at most 5 % of audits. `make calibration` counts,
in 2,000 simulated audits per cell whose truth is known (500 for rules of others), at δ = 1e-05:
[every cell](../tests/calibration/rates.md), and which were counted before a change.

*Wrong*: the largest share over {situations} situations (no leak, ties, Gaussian scores, randomised
response, Laplace, counts); **bold** where that is more than 5 % can explain (chance below 10⁻⁶).
*Proved*: the mean bound as a share of the true ε, for {shown}.

| bound | wrong | {columns} |
|---|---|---|---|---|
{rows}

`calibrated`, the default, was also counted where nothing is left to spare: {cells} cells of 20,000
audits of mechanisms that leak exactly as much as (ε, δ) allows. It was wrong in {least} to {most};
the standard error is 0.15 %.

- `Published()` is what papers report: the best threshold at no cost.
- `joint_beta` gives credible limits, not bounds: where ε = 0, its prior alone puts it above 0.
- `gdp` and `one_run_fdp` assume a Gaussian trade-off curve, one-run methods fair coins; they were
  counted where that holds. A bound rests on its assumptions, which no count of ours can test on
  your data.
- The hull rule of jax-privacy has no theorem; here it errs rarely all the same.
"""
SHOWN = (
    "Gaussian μ = 1, 50 + 50",
    "Gaussian μ = 2, 5000 + 5000",
    "randomised response ε = 1, 1000 + 1000",
)
INTRO = """# Calibration: every cell

In short: [calibration](../../docs/calibration.md). Every cell is {audits:,} simulated audits whose
true ε is known ({fewer:,} in the rows that are not ours to defend), at δ = {delta:g} and 95 %
confidence:

    make calibration

A cell is the share of audits whose bound exceeds the truth; **bold** where that is more than 5 %
can explain (the chance of so many is below 10⁻⁶). A dash: what the method assumes is not true there
(`gdp` and `one_run_fdp` assume a Gaussian trade-off curve, one-run methods fair coins). Bounds stay
below 5 % by as much as they pay for thresholds they did not need, and for both directions.
"""
TIGHT = """
## The default where nothing is left to spare

`calibrated`, the default, on mechanisms that leak exactly as much as (ε, δ) allows, with their own
δ: the share of {audits:,} audits in each cell whose bound exceeds the truth. The standard error is
0.15 %; **bold** would be more than 5.75 %. Where few scores are drawn, shares are lower because no
outcome at all refutes the truth, or the next one would in too many audits. Up to 6,000 scores are
drawn one by one and ties broken with everybody's seed; beyond, ranks are
drawn from their distribution.
"""
POWER = """
## How far below the truth?

The mean bound, as a share of the true ε (or itself, where ε = 0): what the same audits prove.
"""
NOTES = """
## Notes

- Rows of one-run methods whose samples would take too long are {shrink} times smaller (at least
  25 per side): `one_run` Bonferroni, and all of `one_run_fdp`.
- `anytime` pays for a look after every pair; here there is one look.
- Published() is what papers report: the most favourable threshold at no cost, with all of the error
  for each rate.
- *jax-privacy 2.0: hull* is the rule of its `Bonferroni()` default, written from its definition
  and with both directions: α is divided by the number of vertices of the convex hull. The data
  choose the vertices, so no theorem covers it; it is counted here because it errs rarely all the
  same. It proves more than RankGrid where few vertices are paid for: of randomised response and
  other discrete scores, perfect separation, unbalanced samples, large samples of Laplace scores.
  Compared with `calibrated`, which proves at least as much to within 0.4 %:
  [power](../../benchmarks/power.md).
- `joint_beta` gives credible limits, not bounds: on ε = 0 it is above 0 always, by its prior.
"""


AUDITS = 2_000
OTHERS_FEWER = 4


def main() -> None:
    """Counts, prints, writes."""
    if sys.argv[1:] == ["page"]:
        PAGE.write_text(shorten(RATES.read_text("utf-8")), "utf-8")
        return
    audits, rows = AUDITS, (*OURS, *OTHERS)
    wanted = [bound for bound in rows if bound.method in sys.argv[1:] or len(sys.argv) == 1]
    cells = [(bound, s) for bound in wanted for s in SITUATIONS if bound.applies(s)]
    started = time.monotonic()
    found = joblib.Parallel(n_jobs=-1, verbose=5)(
        joblib.delayed(bounds_of)(
            bound, situation, audits=audits if bound in OURS else audits // OTHERS_FEWER
        )
        for bound, situation in cells
    )
    results = {(b.name, s.name): values for (b, s), values in zip(cells, found, strict=True)}
    if len(wanted) < len(rows):
        _write(_replace_rows(wanted, results))
        return
    page = [INTRO.format(audits=audits, fewer=audits // OTHERS_FEWER, delta=DELTA)]
    page.append(_table(rows, results, lambda values, s: _wrong(values, s.epsilon)))
    page.append(TIGHT.format(audits=10 * audits))
    page.append(tight_table(10 * audits))
    page.append(POWER)
    page.append(_table(rows, results, _share))
    page.append(NOTES.format(shrink=SHRINK))
    _write("\n".join(page))
    print(f"{RATES} in {time.monotonic() - started:.0f} s")


def _write(rates: str) -> None:
    RATES.write_text(rates, encoding="utf-8")
    PAGE.write_text(shorten(rates), encoding="utf-8")


def shorten(rates: str) -> str:
    """The page of the documentation: of each bound its worst cell, and what it proves of some."""
    wrong, tight_cells, proved = (_read_table(part) for part in rates.split("\n## ")[:3])
    head = wrong.pop("bound")
    places = [head.index(name) for name in SHOWN]
    rows = []
    for name, cells in wrong.items():
        worst = max(cells, key=_number)
        shown = " | ".join(proved[name][place] for place in places)
        rows.append(f"| {name} | {worst} | {shown} |")
    del tight_cells["mechanism"]
    counted = [cell for cells in tight_cells.values() for cell in cells]
    return SHORT.format(
        situations=len(head),
        shown="; ".join(SHOWN),
        columns=" | ".join(name.split(",")[0] for name in SHOWN),
        rows="\n".join(rows),
        cells=len(counted),
        least=min(counted, key=_number),
        most=max(counted, key=_number),
    )


def _read_table(part: str) -> dict[str, list[str]]:
    """Rows of a table by their first cell."""
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in rows}


def _number(cell: str) -> float:
    """Of a cell, for comparison; below 0 where nothing was counted."""
    return float(cell.strip("*%").replace("–", "-1"))


def _replace_rows(wanted: list[Bound], results: dict) -> str:  # type: ignore[type-arg]
    """The page as it is, with these rows of its first and last table counted anew."""
    parts = RATES.read_text("utf-8").split("\n## ")
    for place, cell in ((0, lambda values, s: _wrong(values, s.epsilon)), (2, _share)):
        new = _table(tuple(wanted), results, cell).splitlines()[2:]
        lines = parts[place].splitlines(keepends=True)
        for row in new:
            name = row.split(" | ")[0]
            (at,) = [i for i, line in enumerate(lines) if line.startswith(name + " |")]
            lines[at] = row + "\n"
        parts[place] = "".join(lines)
    return "\n## ".join(parts)


def tight_table(audits: int) -> str:
    """The share of wrong bounds of the default, a row for every mechanism."""
    wrong = joblib.Parallel(n_jobs=-1)(
        joblib.delayed(tight.count_cell)(mechanism, *sizes, audits=audits)
        for mechanism in tight.MECHANISMS
        for sizes in tight.SIZES
    )
    lines = ["| mechanism | " + " | ".join(f"{m:,} + {n:,}" for m, n in tight.SIZES) + " |"]
    lines.append("|---" * (len(tight.SIZES) + 1) + "|")
    for row, mechanism in enumerate(tight.MECHANISMS):
        counts = wrong[row * len(tight.SIZES) : (row + 1) * len(tight.SIZES)]
        cells = " | ".join(_mark_often(count, audits, 2) for count in counts)
        lines.append(f"| {mechanism.name} | {cells} |")
    return "\n".join(lines)


def _wrong(values: np.ndarray, epsilon: float) -> str:
    return _mark_often(int(np.sum(values > epsilon)), values.size, 1)


def _mark_often(wrong: int, audits: int, digits: int) -> str:
    text = f"{wrong / audits:.{digits}%}"
    return f"**{text}**" if oracles.too_often(wrong, audits) else text


def _share(values: np.ndarray, situation: Situation) -> str:
    if situation.epsilon == 0:
        return f"{values.mean():.3f}"
    return f"{values.mean() / situation.epsilon:.0%}"


def _table(rows: tuple[Bound, ...], results: dict, cell) -> str:  # type: ignore[no-untyped-def]
    lines = ["| bound | " + " | ".join(s.name for s in SITUATIONS) + " |"]
    lines.append("|---" * (len(SITUATIONS) + 1) + "|")
    for bound in rows:
        cells = [
            cell(results[bound.name, s.name], s) if (bound.name, s.name) in results else "–"
            for s in SITUATIONS
        ]
        lines.append(f"| {bound.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
