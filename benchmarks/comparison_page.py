"""The pages and the chart of what ``comparison.py`` measured: in short, and in full."""

import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.stats
import zoo_peers_page
from questions import QUESTIONS, TOOLS, Ask, Question, Row

_HERE = Path(__file__).resolve().parent
_DOCS = _HERE.parent / "docs"
PAGE, FULL, CHART = _DOCS / "comparison.md", _HERE / "comparison.md", _DOCS / "comparison.svg"
_NOMINAL = 0.05
_INK, _OURS, _THEIRS = "#808080", "#2b8cbe", "#e6842a"  # seen on white and on black
_SHORT = """# Comparison with other tools

The same data and question for every tool, each in a separate environment with pinned versions.
Written by `make comparison`; `python benchmarks/comparison.py page` draws it again.
[In full](../benchmarks/comparison.md): calls, settings, versions, limits, answers, memory, and why
tools err.

{wins}

![False alarms, claims refuted and CPU seconds of every tool](comparison.svg)

*False alarms*: audits that see a leak where there is none; **bold** if 95 % limits exclude 5 % from
below. *Refuted*: audits that refute a false claim. *CPU*: of one audit, good to a factor of two.

| tool | false alarms | refuted | CPU, s |
|---|---|---|---|
{rows}

- Calls with few audits show that a tool runs and what it costs, and little of its errors.
- Opacus and Flower do not audit: their scores get our bound, so only time and memory are theirs.
- A threshold for privacy-estimates, the noise of DP-SGD and the size of the classifier were chosen
  after a look at the data.
"""
_TEXT = """# Comparison with other tools, in full

The same data, the same question, each tool in its own environment with every version pinned
(`benchmarks/peers`). Written by `make comparison`; do not edit. What was
measured is kept in `benchmarks/comparison.json`;
`python benchmarks/comparison.py page` draws this page and its
[short form](../docs/comparison.md) from it again.

- **False alarms**: of audits where nothing leaks, how many say that something does. More than 5 %
  is more than a tool allows itself that speaks of 95 %.
- **Refuted**: of audits where a claim is false, how many refute it.
- **Median answer**: where nothing leaks; where the claim is false.
- **CPU**: seconds of one audit, of all threads; the median of three after a first that loads what
  there is to load. Of training runs: of all processes, from their start to their end.
- **Memory**: the most that the process held, with all that it imports (ours scikit-learn too, for
  the question of the classifier); of training runs, all processes.

| question | tool | call | false alarms | refuted | median answer | CPU (s) | memory (MB) |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

In brackets: 95 % limits by Clopper and Pearson. **Bold**: these limits exclude 5 % from below.

{beyond}

What was given:

{settings}

Measured on {machine}. {runs}

## How to read it

{notes}

Speed on large data is another question: [ten million scores](results.md),
[trainings](training.md), [rounds of federated training](federated.md),
[leave-one-out](leave_one_out.md).
"""
_NOTES = (
    "A valid bound that is never wrong is not better than one that is wrong in 3 of 100: it pays "
    "for a certainty that nobody asked for, and refutes less.",
    "**jax-privacy**: the default divides the error by the corners of the hull, one-sided. "
    "`MultiSplit`, the option with a proof, halves the scores. `epsilon_from_gdp` takes |μ| at "
    "every corner, also where the upper limits of both error rates sum to more than 1, which says "
    "nothing at all: it is above 0 always.",
    "**opake-auditing** 0.16 chooses the threshold with the most right guesses and tests as if it "
    "had been fixed; with a threshold that was fixed beforehand the same test holds. Its Gaussian "
    "test bounds tails by Chernoff's inequality, which leaves room for that choice.",
    "**privacy-estimates** asks for counts at a threshold and leaves it to you. `joint-beta` is a "
    "credible limit: its prior alone puts it above 0. `beta` and `jeffreys` hold at a threshold "
    "that was fixed.",
    "**PrivacyGuard**'s headline `eps` is the upper end of a bootstrap of ε at a TPR of 1 %: "
    "an estimate, for which zero is no special value. `eps_lb` is its lower end, no bound either; "
    "`eps_cp` takes half of the scores, the best of all thresholds, and limits of 97.5 % for each "
    "rate. Its `FDPAnalysisNode` was not asked: its grid of noises ends at 10, so that it never "
    "answers 0.",
    "**ART** guesses, and says nothing of chance; that guesses are right more often than ½ is how "
    "its own examples are read. Half of the records teach the attack, the other half are guessed.",
    "**SACRO-ML** tests ten overlapping splits of the same records and speaks against release "
    "where more than one is significant.",
    "**Opacus** trains, and **Flower** simulates: neither audits. The loop around them is written "
    "by hand, and their scores are given to our bound, so only time and memory are theirs.",
    "How settings were chosen. privacy-estimates was first asked at a threshold of 0.5, where it "
    "refuted 0 of 1,000; 1.5 was taken after that, on the same scores. Noise and learning rate of "
    "the DP-SGD are one of four pairs that our own audit was tried on. The classifier was made "
    "smaller (300 digits in place of 600) after a few trials in which every tool found the leak.",
    "Calls with few audits show that a tool runs and what it costs; their limits say how little "
    "they show of its errors. Other programs ran beside, at a low priority: seconds are good to a "
    "factor of two.",
    "Not asked: whatever a tool does that others do not. ART has attacks on images, evasion and "
    "poisoning; PrivacyGuard text extraction; SACRO-ML attribute inference and structural rules; "
    "jax-privacy and Opacus train.",
)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A line of the table."""

    question: Question
    asked: Ask
    key: str
    row: Row
    raw: dict[str, Any]

    @property
    def ours(self) -> bool:
        """Whether it is epsilometer's."""
        return self.asked.tool == "epsilometer"

    @property
    def alarms(self) -> tuple[int, int]:
        """How many, of how many audits where nothing leaks."""
        limit = self.question.alarm if self.row.alarm is None else self.row.alarm
        return sum(value > limit for value in self.raw["null"]), len(self.raw["null"])

    @property
    def refuted(self) -> tuple[int, int]:
        """How many, of how many audits of a false claim."""
        limit = self.question.refuted if self.row.refuted is None else self.row.refuted
        return sum(value > limit for value in self.raw["known"]), len(self.raw["known"])

    @property
    def beyond(self) -> int:
        """How many answers say more than is true, where that is known."""
        truth = self.question.truth
        return 0 if truth is None else sum(value > truth for value in self.raw["known"])

    @property
    def holds(self) -> bool:
        """Whether the counts leave it possible that false alarms are at most 5 %."""
        return limits(*self.alarms)[0] <= _NOMINAL


def write_page(raw: dict[str, Any]) -> None:
    """The pages and their chart."""
    PAGE.write_text(page(raw), "utf-8")
    FULL.write_text(full_page(raw), "utf-8")
    _draw(counted(raw))


def page(raw: dict[str, Any]) -> str:
    """The page of the documentation."""
    lines = counted(raw)
    rows = []
    for question in QUESTIONS:
        asked = [_short_line(line) for line in lines if line.question is question]
        rows += [f"| *{question.title}* | | | |", *asked] if asked else []
    return _SHORT.format(wins=_wins(lines), rows="\n".join(rows)) + zoo_peers_page.summary()


def full_page(raw: dict[str, Any]) -> str:
    """The page with everything that was measured."""
    lines = counted(raw)
    own = _TEXT.format(
        rows="\n".join(_line(line) for line in lines),
        settings="\n".join(f"- *{question.title}* {question.setting}." for question in QUESTIONS),
        beyond=_beyond(lines),
        machine=raw["machine"],
        runs=_runs(raw["runs"]),
        notes="\n".join(f"- {note}" for note in _NOTES),
    )
    return own + zoo_peers_page.section()


def counted(raw: dict[str, Any]) -> list[Counted]:
    """All lines for which there are measurements, in the order of the questions."""
    measured = {(r["question"], r["tool"], r["name"], r["key"]): r for r in raw["rows"]}
    return [
        Counted(question=question, asked=asked, key=key, row=row, raw=found)
        for question in QUESTIONS
        for asked in question.asked
        for key, row in asked.rows.items()
        if (found := measured.get((question.name, asked.tool, asked.name, key)))
    ]


def limits(count: int, of: int) -> tuple[float, float]:
    """Clopper's and Pearson's, 95 %."""
    found = scipy.stats.binomtest(count, of).proportion_ci(0.95)
    return float(found.low), float(found.high)


def _runs(runs: list[dict[str, Any]]) -> str:
    """Whether all was measured together, in words."""
    first, *later = runs
    words = f"One run of {first['minutes']:.0f} minutes, one call after the other."
    for run in later:
        asked = ", ".join(TOOLS[tool].strip("*") for tool in run["asked"])
        words += f" Afterwards once more, for {run['minutes']:.2g} minutes: {asked}."
    return words


def _beyond(lines: list[Counted]) -> str:
    """What an alarm where nothing leaks does not show: answers above a truth that is not 0."""
    told = [f"{_label(p)}: {p.beyond:,} of {len(p.raw['known']):,}" for p in lines if p.beyond]
    question = next(question for question in QUESTIONS if question.truth is not None)
    return (
        f"*{question.title}* Where ε = {question.truth}, answers above it, which 5 % of lower "
        f"bounds may be: {'; '.join(told)}; all others: none."
    )


def _wins(lines: list[Counted]) -> str:
    """Where a peer is better than our first call, before anything else."""
    told = []
    for question in QUESTIONS:
        asked = [line for line in lines if line.question is question]
        if not asked:
            continue
        ours, peers = asked[0], [line for line in asked if not line.ours]
        quick = [p for p in peers if p.raw["cpu_seconds"] < ours.raw["cpu_seconds"]]
        small = [p for p in peers if p.raw["peak_bytes"] < ours.raw["peak_bytes"]]
        share = ours.refuted[0] / ours.refuted[1]
        sharp = [p for p in peers if p.holds and limits(*p.refuted)[0] > share]
        words = [
            f"{what}: {'; '.join(_named(p, shown(p)) for p in found)} (ours {shown(ours)})."
            for what, found, shown in (
                ("Faster", quick, lambda line: f"{_seconds(line)} s"),
                ("Smaller", small, lambda line: f"{_megabytes(line)} MB"),
                ("Refutes oftener", sharp, lambda line: _share(*line.refuted)),
            )
            if found
        ]
        said = " ".join(words) or "Nowhere."
        told.append(f"- *{question.title}* {said}")
    return "**Where a peer is better than our default:**\n\n" + "\n".join(told)


def _named(line: Counted, shown: str) -> str:
    return f"{_label(line)} {shown}" + ("" if line.holds else ", with too many false alarms")


def _line(line: Counted) -> str:
    middle = "; ".join(f"{statistics.median(line.raw[name]):.2f}" for name in ("null", "known"))
    alarms = _share(*line.alarms)
    cells = (
        line.question.title,
        f"{TOOLS[line.asked.tool]} {line.raw['version']}",
        line.row.call,
        alarms if line.holds else f"**{alarms}**",
        _share(*line.refuted),
        f"{line.row.what} {middle}",
        _seconds(line),
        _megabytes(line),
    )
    return f"| {' | '.join(cells)} |"


def _short_line(line: Counted) -> str:
    alarms, refuted = (f"{count:,}/{of:,}" for count, of in (line.alarms, line.refuted))
    name = _label(line)
    cells = (
        f"**{name}**" if line.ours else name,
        alarms if line.holds else f"**{alarms}**",
        refuted,
        _seconds(line),
    )
    return f"| {' | '.join(cells)} |"


def _share(count: int, of: int) -> str:
    low, high = limits(count, of)
    return f"{count:,} of {of:,} ({100 * low:.1f} to {100 * high:.1f} %)"


def _seconds(line: Counted) -> str:
    return f"{line.raw['cpu_seconds']:.2g}"


def _megabytes(line: Counted) -> str:
    return f"{line.raw['peak_bytes'] / 1e6:,.0f}"


def _draw(lines: list[Counted]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "epsilometer",
        "font.size": 8,
        "text.color": _INK,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with plt.rc_context(style):
        figure, panels = plt.subplots(1, 3, sharey=True, figsize=(9, 0.5 + 0.27 * len(lines)))
        places = range(len(lines), 0, -1)
        for place, line in zip(places, lines, strict=True):
            colour = _OURS if line.ours else _THEIRS
            for panel, (count, of) in zip(panels, (line.alarms, line.refuted), strict=False):
                low, high = limits(count, of)
                panel.plot([100 * low, 100 * high], [place, place], color=colour, alpha=0.5)
                panel.plot(100 * count / of, place, "o", color=colour, markersize=4)
            panels[2].plot(line.raw["cpu_seconds"], place, "o", color=colour, markersize=4)
        panels[0].axvline(100 * _NOMINAL, color=_INK, linewidth=0.8, linestyle=":")
        panels[0].set_yticks(
            list(places), [f"{line.question.name}: {_label(line)}" for line in lines]
        )
        panels[0].set_xlabel("false alarms, % (dots: 5 %)")
        panels[1].set_xlabel("false claims refuted, %")
        panels[2].set_xlabel("CPU seconds of an audit")
        panels[2].set_xscale("log")
        for panel in panels:
            panel.patch.set_alpha(0)
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="y", color=_INK, alpha=0.15)
            for above, below in itertools.pairwise(lines):
                if above.question is not below.question:
                    panel.axhline(len(lines) - lines.index(above) - 0.5, color=_INK, linewidth=0.5)
        figure.tight_layout()
        figure.savefig(CHART, transparent=True, metadata={"Date": None})
        plt.close(figure)


def _label(line: Counted) -> str:
    name = TOOLS[line.asked.tool].strip("*")
    return f"{name}, {line.key.replace('_', ' ')}"
