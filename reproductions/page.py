"""Writes docs/reproductions.md from what every folder's ``paper.toml`` records.

python reproductions/page.py
"""

from collections import Counter
from pathlib import Path

from standings import (
    NOT_MEASURED,
    STANDINGS,
    Joint,
    compare_jointly,
    count_standings,
    decide,
    differs_jointly,
)

from epsilometer.cli.reproduce import Item, Paper, list_papers
from epsilometer.core.references import BIBLIOGRAPHY

PAGE = Path(__file__).parents[1] / "docs" / "reproductions.md"
INTRO = """# Reproductions: published numbers and ours

Written by `python reproductions/page.py` from the `paper.toml` of each folder; do not edit.

    epsilometer reproduce                                  # list the papers
    epsilometer reproduce one-shot                         # quickly, on a CPU, without any data
    epsilometer reproduce one-shot --only table-1 --full   # one table, as published
    epsilometer reproduce shuffling --full --data FOLDER --device cuda

The command prints published and measured numbers side by side, and writes both to `--out` as a
page (`page.md`) and as JSON (`results.json`). A killed call resumes and gives the same bytes. A
quick call runs a small version of the same code, with datasets of scikit-learn in place of missing
data (`--data FOLDER` or `EPSILOMETER_DATA` names their folder). It shows directions, not digits,
and runs in CI. The tables below come from full calls, or from the command that is named. *By the
law* means that the adversary's observations are drawn from their distribution, at the published
size, where no network and no data change it. So a published number may have two rows, one trained
and one by the law.

`reproductions/standings.py` computes the status of each row from the published value, its spread
and number of runs, and ours; none is written by hand. The rule for curves with errors ("stays",
"jumps") was changed after the table of 60 epochs was measured: under the older rule, without
errors, eight of its rows differed.

- **agrees**: the difference is at most two combined standard errors (spreads divided by the root
  of the number of runs) plus rounding. Where a paper prints no spread, ours is used. Deterministic
  numbers must agree to the printed digits;
- **same direction**: for other data or another size, or where the paper shows a curve or a bar
  without numbers: our numbers are in the published order, by more than two standard errors where
  these are known;
- **cannot tell**: no spread is known, or it is so large that no smaller number could have failed,
  or no two numbers are far enough apart to be ordered;
- **differs**: more than two standard errors apart, other digits, or another order;
- **not measured**: not run yet;
- **only ours**: not in the paper, and not counted.

Rows that agree one by one may all deviate in the same direction. So the rows of a table that are
compared by their digits are also tested jointly: by the sum of their squared deviations in
standard errors, and by the sum of their deviations (each p doubled). Of several numbers in a row,
the one furthest away counts (p times their number). A table differs jointly where the smallest p,
times the number of tests of the table, is below 0.05.
"""


def text() -> str:
    """The whole page."""
    known = list_papers()
    heads = ("paper", "tables and figures", "differ jointly", "rows", *STANDINGS)
    lines = [INTRO, f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    total: Counter[str] = Counter()
    for paper in known.values():
        counts = _counts(paper)
        total.update(counts)
        link = f"[{paper.about}](#{_anchor(paper.about)})"
        lines.append(f"| {link} | {' | '.join(str(counts[head]) for head in heads[1:])} |")
    lines += [f"| **all** | {' | '.join(str(total[head]) for head in heads[1:])} |", ""]
    for paper in known.values():
        lines += _section(paper)
    return "\n".join(lines)


def _counts(paper: Paper) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item in paper.items:
        counts.update(count_standings(decide(item)))
    counts["rows"] = sum(counts.values())
    counts["tables and figures"] = len(paper.items)
    tests = (compare_jointly(item) for item in paper.items)
    counts["differ jointly"] = sum(differs_jointly(each) for each in tests)
    return counts


def _anchor(heading: str) -> str:
    return "".join(c for c in heading.lower() if c.isalnum() or c in " -").replace(" ", "-")


def _section(paper: Paper) -> list[str]:
    reference = BIBLIOGRAPHY[paper.key]
    readme = f"../reproductions/{paper.folder.name}/README.md"
    lines = [
        f"## {paper.about}",
        "",
        f"{reference} What was found, at length: [here]({readme}).",
        "",
    ]
    lines.append(f"Quickly: {paper.quick_takes}. In full: {paper.full_needs}.")
    lines.append("")
    for item in paper.items:
        lines += _table(paper, item)
    lines += ["**What cannot be had here**", ""]
    lines += [f"- {what}: {why}" for what, why in paper.missing]
    return [*lines, ""]


def _table(paper: Paper, item: Item) -> list[str]:
    command = f"epsilometer reproduce {paper.name} --full --only {item.name}"
    if item.files:
        command += " --data FOLDER"
    lines = [f"### {item.title}", "", f"    {command}", ""]
    if item.command:
        lines += [f"Ours by `{item.command}`.", ""]
    runs = (_runs(item.published_runs), _runs(item.runs))
    lines += [
        f"Published: {runs[0]}. Ours: {runs[1]}, seed {item.seed}, where a row has no other.",
        "",
    ]
    lines += ["| | published | ours | status | why |", "|---|---|---|---|---|"]
    standings = decide(item)
    for row in item.rows:
        runs = f", {row.ours.runs} runs" if row.ours.runs > 1 else ""
        ours = f"{row.ours}{runs}" or NOT_MEASURED
        shown = (row.name, str(row.published) or "–", ours)
        lines.append(f"| {' | '.join(shown)} | {standings[row.name]} | {row.why} |")
    return [*lines, "", *_joint(compare_jointly(item))]


def _runs(count: int) -> str:
    return "of one run" if count == 1 else f"means of {count} runs"


def _joint(tests: list[Joint]) -> list[str]:
    """Return what the rows of a table say together."""
    if not tests:
        return []
    said = []
    for test in tests:
        of = f"{test.of}: " if test.of else ""
        said.append(
            f"{of}{test.low} of {test.count} below the published, {test.beyond} beyond two "
            f"standard errors, p = {test.p:.2g}"
        )
    verdict = "the table differs" if differs_jointly(tests) else "no difference shown"
    return [f"Jointly, **{verdict}**. {'; '.join(said)}.", ""]


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
