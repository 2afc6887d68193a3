"""Compute both ends of ε for published settings that shuffle, and say which reported ε can stand.

    python reproductions/shuffling/published_settings.py            prints the table
    python reproductions/shuffling/published_settings.py --write    puts it into README.md

``settings.csv`` has the settings, each with its source. Where no noise is printed, it is the one
that Rényi accounting of Poisson sampling gives for the reported ε, as the programs compute it.
"""

import argparse
import csv
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from epsilometer import shuffle_epsilon, shuffle_upper
from epsilometer.accounting import rdp
from epsilometer.stats import search

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
BEGIN, END = "<!-- settings -->", "<!-- end of settings -->"
_CALIBRATED = 1.05  # times the reported ε, where noise was calibrated here
_MOST_NOISE = 60.0
AUDITED = ("Annamalai et al.", "De et al.", "Li et al.")  # sources of the 101 settings
STANDS, FALLS, OPEN = "stands", "cannot stand", "open"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One published training.

    Attributes:
        name: Data set and model.
        shuffles: How that is known: ``stated`` in the paper, or read in its ``code``.
        steps: Batches per epoch.
        whole: Whole epochs: the lower end counts these.
        begun: Epochs that were begun: the upper end counts these.
        noise: The noise multiplier.
        printed: Whether the noise is printed, or was calibrated here.
        reported: The published ε.
        delta: Its δ.
        source: Where the setting is from.
    """

    name: str
    shuffles: str
    steps: int
    whole: int
    begun: int
    noise: float
    printed: bool
    reported: float
    delta: float
    source: str


@dataclass(frozen=True)
class Ends:
    """What ε of a setting is at least and at most, and by which bound."""

    low: float
    high: float
    method: str


def read_rows() -> list[dict[str, str]]:
    """Read all settings as they were published."""
    with (HERE / "settings.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def make_setting(row: dict[str, str]) -> Setting:
    """Return the setting of a row; noise that is not printed is calibrated."""
    steps = int(row["steps"] or int(row["records"]) // int(row["batch_size"]))
    updates = int(row["updates"] or steps * int(row["epochs"]))
    reported, delta = float(row["reported"]), float(row["delta"])
    printed = bool(row["noise_multiplier"])
    noise = float(row["noise_multiplier"]) if printed else 0.0
    if not printed:
        rate = int(row["batch_size"]) / int(row["records"])
        noise = calibrate_noise(reported, delta, rate, updates)
    return Setting(
        name=row["name"],
        shuffles=row["shuffles"],
        steps=steps,
        whole=updates // steps,
        begun=-(-updates // steps),
        noise=noise,
        printed=printed,
        reported=reported,
        delta=delta,
        source=row["source"],
    )


def calibrate_noise(epsilon: float, delta: float, rate: float, updates: int) -> float:
    """Return the noise with which Rényi accounting of Poisson sampling reports ε."""

    def keep(noise: float) -> float:
        found = rdp.poisson_epsilon(
            noise_multiplier=noise, sampling_rate=rate, steps=updates, delta=delta
        )
        return math.log(epsilon / found)

    if keep(_MOST_NOISE) < 0:
        raise ValueError(f"Expected an ε that Rényi accounting can report, got {epsilon}.")
    return search.root(keep, 0.3, _MOST_NOISE, relative=1e-4)[1]


def compute_ends(setting: Setting) -> Ends:
    """Compute what ε of shuffling is at least (one pair) and at most (proved)."""
    shared = {"noise_multiplier": setting.noise, "steps": setting.steps, "delta": setting.delta}
    upper = shuffle_upper(**shared, epochs=setting.begun)
    return Ends(shuffle_epsilon(**shared, epochs=setting.whole).low, upper.high, upper.method)


def judge_reported(reported: float, ends: Ends, *, margin: float = 1.0) -> str:
    """Say whether a reported ε can stand where records were shuffled.

    Noise that was calibrated here may differ a little from theirs: only ``margin`` times the
    reported ε is then too much.

    >>> judge_reported(3.0, Ends(17.8, 24.4, "")), judge_reported(30.0, Ends(17.8, 24.4, ""))
    ('cannot stand', 'stands')
    >>> judge_reported(20.0, Ends(17.8, 24.4, ""))
    'open'
    """
    if ends.low > margin * reported:
        return FALLS
    return STANDS if margin * ends.high <= reported else OPEN


def write_table(settings: list[Setting]) -> str:
    """Return the table as Markdown, with its counts."""
    rows, labels = [], []
    for setting in settings:
        ends = compute_ends(setting)
        margin = 1.0 if setting.printed else _CALIBRATED
        labels.append(judge_reported(setting.reported, ends, margin=margin))
        mark = "" if setting.printed else "†"
        low, high = math.floor(ends.low * 100) / 100, math.ceil(ends.high * 100) / 100
        rows.append(
            f"| {setting.name} | {setting.noise:.3g}{mark} | {setting.steps} | {setting.begun} "
            f"| {setting.delta:g} | {setting.reported:g} | [{low:.2f}, {high:.2f}] "
            f"| {labels[-1]} | {setting.source} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    audited = [
        label
        for setting, label in zip(settings, labels, strict=True)
        if setting.source.startswith(AUDITED)
    ]
    head = (
        f"{len(rows)} settings: {_count(labels)}. "
        f"Of the {len(audited)} of De et al. and Li et al., {_count(audited)}.\n\n"
        "| setting | noise | steps | epochs | δ | reported | ε of shuffling | standing | source |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _count(labels: list[str]) -> str:
    return ", ".join(f"{labels.count(label)} {label}" for label in (FALLS, OPEN, STANDS))


def main() -> None:
    """Print the table, or put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="Put the table into the page.")
    parser.add_argument("--only", type=int, help="Compute so many settings.")
    options = parser.parse_args()
    table = write_table([make_setting(row) for row in read_rows()[: options.only]])
    if not options.write:
        print(table)
        return
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
