"""Draws what tables.py, removal.py and variation.py found.

python reproductions/training_privacy/figures.py --found FOLDER --out reproductions/training_privacy
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

PANELS = (
    ("1a", "NN-Shopping-10", "untargeted"),
    ("1b", "NN-Shopping-10", "frequency"),
    ("1c", "NN-Shopping-10", "distance"),
    ("2", "NN-Shopping-10", "best"),
    ("4b", "NB-Shopping-10", "distance"),
    ("4c", "LR-Shopping-10", "distance"),
    ("5a", "NN-Adult", "distance"),
    ("5b", "NB-Adult", "distance"),
    ("5c", "LR-Adult", "distance"),
)


def scatter(found: Path, out: Path) -> None:
    """Figures 1, 2, 4 and 5: how often a target is told, by its PDTP."""
    figure, axes = plt.subplots(3, 3, figsize=(9, 7.2), sharey=True, layout="constrained")
    for (number, name, attack), panel in zip(PANELS, axes.flat, strict=True):
        row = _read(found / f"{name}.json")
        told = row["best"] if attack == "best" else row["attacks"][attack]
        what = "best of three" if attack == "best" else attack
        panel.scatter(row["targets"]["pdtp"], row["targets"][attack], s=6)
        panel.axhline(0.5, color="grey", linewidth=0.5)
        panel.set_title(f"{number}: {what}, {name}, ρ = {told['correlation']:.2f}", fontsize=8)
        panel.set_xlim(left=0)
    figure.supxlabel("mean PDTP of a target, binned")
    figure.supylabel("share of attacks on it that are right")
    figure.savefig(out / "attacks.png", dpi=90)


def others(found: Path, out: Path) -> None:
    """Figures 3, 6, 7 and 8."""
    figure, axes = plt.subplots(1, 4, figsize=(12, 2.8), layout="constrained")
    growing = _read(found / "NB-Shopping-10.json")["by_measurements"]
    axes[0].plot(range(1, len(growing) + 1), growing)
    axes[0].set_title("3: correlation by measurements of PDTP", fontsize=8)
    for line in _read(found / "removal.json"):
        if line["smoothing"] == "none":
            how = "riskiest of those left" if line["again"] else "by the first order"
            axes[1].plot(line["binned"], label=how, linewidth=1)
    axes[1].axhline(1, color="grey", linewidth=0.5)
    axes[1].legend(fontsize=7)
    axes[1].set_title("6: largest binned PDTP by records dropped", fontsize=8)
    for panel, line in zip(axes[2:], _read(found / "variation.json"), strict=True):
        _histogram(panel, line)
    figure.savefig(out / "others.png", dpi=90)


def _histogram(panel: Axes, line: dict[str, Any]) -> None:
    low, high = zip(*line["p"], strict=True)
    panel.hist(low, bins=20, alpha=0.7, label="low salary")
    panel.hist(high, bins=20, alpha=0.7, label="high salary")
    panel.legend(fontsize=7)
    panel.set_title(f"{line['figure']}: p of a high salary, by {line['by']}", fontsize=8)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    """Writes two pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--found", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    scatter(given.found, given.out)
    others(given.found, given.out)


if __name__ == "__main__":
    main()
