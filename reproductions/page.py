"""Writes docs/reproductions.md from what every folder's ``paper.toml`` records.

python reproductions/page.py
"""

from collections import Counter
from pathlib import Path

from epsilometer.cli.reproduce import OURS_ALONE, STANDINGS, Item, Paper, list_papers
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

- **within error**: the difference is what chance would do: at most two standard deviations of ours
  and of theirs together where they are known, else what the row says;
- **direction only**: larger where it is larger, on other data, at another size, or where the paper
  prints a curve or a bar and no number;
- **not reproduced**: the row says why, or that it was not run;
- **ours alone**: not in the paper, and not counted.
"""


def text() -> str:
    """The whole page."""
    known = list_papers()
    heads = ("paper", "tables and figures", "rows", *STANDINGS)
    lines = [INTRO, f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    total: Counter[str] = Counter()
    for paper in known.values():
        counts = _counts(paper)
        total += counts
        cells = [f"[{paper.about}](#{_anchor(paper.about)})", str(len(paper.items))]
        cells += [str(counts.total()), *(str(counts[standing]) for standing in STANDINGS)]
        lines.append(f"| {' | '.join(cells)} |")
    items = sum(len(paper.items) for paper in known.values())
    cells = ["**all**", str(items), str(total.total()), *(str(total[s]) for s in STANDINGS)]
    lines += [f"| {' | '.join(cells)} |", ""]
    for paper in known.values():
        lines += _section(paper)
    return "\n".join(lines)


def _counts(paper: Paper) -> Counter[str]:
    every = (row.standing for item in paper.items for row in item.rows)
    return Counter(standing for standing in every if standing != OURS_ALONE)


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
    lines += ["| | published | ours | standing | why |", "|---|---|---|---|---|"]
    for row in item.rows:
        ours = row.ours or "not run"
        lines.append(f"| {row.name} | {row.published} | {ours} | {row.standing} | {row.why} |")
    return [*lines, ""]


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
