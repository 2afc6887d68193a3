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
INTRO = """# Reproductions: every published number beside ours

Written by `python reproductions/page.py` from the `paper.toml` of each folder; do not edit.

    epsilometer reproduce                                  # which there are
    epsilometer reproduce one-shot                         # quickly, on a CPU, without any data
    epsilometer reproduce one-shot --only table-1 --full   # one table, as published
    epsilometer reproduce shuffling --full --data FOLDER --device cuda

prints what was published beside what is measured, and writes both to `--out` as a page (`page.md`)
and as JSON (`results.json`). Killed and called again, it goes on, to the same bytes. *Quickly* is a
small version of the same code, with sets of scikit-learn where data are not there (`--data FOLDER`
or `EPSILOMETER_DATA` says where they are): it shows directions, not digits, and runs in CI. The
tables below are of the full calls, or of the command that is named. *By the law* means that what an
adversary sees is drawn from its law, at the published size, where no net and no data change it; a
published number may so have two rows, trained and by the law.

Nobody types a standing: `reproductions/standings.py` decides from published value, spread and
number of runs, and from ours. How curves with errors are judged ("stays", "jumps") was changed
after the table of 60 epochs was measured: by the older rule, without errors, eight of its rows
differed.

- **agrees**: the difference is at most two combined standard errors (spreads divided by the root of
  the number of runs) and what rounding explains. Where a paper prints no spread, ours stands for
  it. Where no chance is in a number, printed digits must be met;
- **same direction**: of other data or size, or where the paper prints a curve or a bar and no
  number: ours are in the published order, by more than two standard errors where these are known;
- **cannot tell**: no spread is known, it is so large that no smaller number could have failed, or
  no two numbers are far enough apart to be ordered;
- **differs**: beyond two standard errors, other digits, or another order;
- **not measured**: nobody has run it;
- **ours alone**: not in the paper, and not counted.

Rows that agree one by one may lie on one side together. So rows of a table that are compared by
their digits are tested jointly: by the sum of their squared deviations in standard errors and by
their sum (each p doubled), numbers of one row by the farthest (p times their number). A table
differs jointly where the smallest p, times the number of tests of the table, is below 0.05.
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
    lines += ["| | published | ours | standing | why |", "|---|---|---|---|---|"]
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
