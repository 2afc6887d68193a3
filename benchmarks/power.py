"""Compares what our default bound proves with every valid call of jax-privacy, in a grid.

    python benchmarks/power.py            # all, anew; writes power.csv and power.md
    python benchmarks/power.py ours       # our bounds again, the peer's as they stand
    python benchmarks/power.py page       # the page again, nothing measured

``--jobs N`` asks N settings at a time. Both tools get the same scores, drawn from the number of the
setting. Settings are kept as soon as they have answered.
"""

import csv
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import joblib
import numpy as np
from measurement import ask
from numpy.typing import NDArray
from sizes import ARGUMENTS, TINY, choose_size, write_page

from epsilometer.core.scores import Scores
from epsilometer.stats.estimators import epsilon_lower_bound

FloatArray: TypeAlias = NDArray[np.float64]
_Draw: TypeAlias = Callable[[np.random.Generator, int, int], tuple[FloatArray, FloatArray]]
_HERE = Path(__file__).resolve().parent
RAW, PAGE = _HERE / "power.csv", _HERE / "power.md"
THEIRS = ("hull", "split", "split_one_sided", "multi_split")
COLUMNS = ("law", "n_in", "n_out", "delta", "audits", "ours", *THEIRS)
MOST = {50: 3.4726, 100: 4.1835, 1_000: 6.5020, 10_000: 8.8061}  # perfect separation, δ = 0
_HEADER = (
    *("law", "inside + outside", "δ", "audits", "ours", "hull", "Split", "Split, one-sided"),
    *("MultiSplit", "ours / best of theirs"),
)
_TEXT = """# Power, compared with jax-privacy

Written by `make comparison`; do not edit. Mean bounds at 95 % confidence, over audits of the same
scores (`audits`), of our default and of every call of jax-privacy 2.0 that may be called valid:
`epsilon_clopper_pearson(0.05, delta, one_sided=False)`, once by default (*hull*), with
`Split(seed=…)` and with `MultiSplit(seed=…)`; and `Split` with `one_sided=True`. No theorem covers
*hull* (the scores choose how much is paid), but it errs rarely. `Explicit` is left out: its
threshold must be known before the scores. What was measured is kept in `benchmarks/power.csv`.

{summary}

{header}
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
"""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A law of scores, how many there are, and at which δ ε is bounded."""

    law: str
    n_in: int
    n_out: int
    delta: float

    @property
    def audits(self) -> int:
        """So many that means are steady, as far as time allows."""
        return choose_size({100: 100, 1_000: 40}.get(min(self.n_in, self.n_out), 30), 2)

    def draw(self, audit: int) -> tuple[FloatArray, FloatArray]:
        """Scores inside and outside, the same for both tools."""
        name = f"{self.law} {self.n_in} {self.n_out} {self.delta}"
        return LAWS[self.law](np.random.default_rng([audit, *name.encode()]), self.n_in, self.n_out)

    def measure_ours(self) -> float:
        """Return the mean of our default bound."""
        bounds = [
            epsilon_lower_bound(Scores(*self.draw(audit)), delta=self.delta, seed=audit).epsilon
            for audit in range(self.audits)
        ]
        return float(np.mean(bounds))

    def measure_theirs(self) -> dict[str, float]:
        """Return the mean of each call of the peer."""
        if TINY:
            return dict.fromkeys(THEIRS, math.nan)
        drawn = [self.draw(audit) for audit in range(self.audits)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "scores.npz")
            inside, outside = (np.stack(side) for side in zip(*drawn, strict=True))
            seeds = np.arange(self.audits)
            np.savez(file, inside=inside, outside=outside, delta=self.delta + 0 * seeds, seed=seeds)
            answers = ask("jax_privacy", "power", f"{file}:{self.audits}")["answers"]
        return {name: float(np.mean([one[name] for one in answers])) for name in THEIRS}


def _shift(draw: Callable[[np.random.Generator, int], FloatArray], shift: float) -> _Draw:
    return lambda rng, m, n: (draw(rng, m) + shift, draw(rng, n))


def _respond(epsilon: float) -> _Draw:
    honest = 1 / (1 + math.exp(-epsilon))
    return lambda rng, m, n: (1.0 * (rng.random(m) < honest), 1.0 * (rng.random(n) >= honest))


def _reveal(chance: float) -> _Draw:
    return lambda rng, m, n: (1.0 * (rng.random(m) < chance), np.zeros(n))


def _leak_atoms(epsilon: float, mass: float) -> _Draw:
    """Two atoms of a mass that leak, and one between them that does not."""
    high = mass / (1 + math.exp(-epsilon))
    chances = np.array([mass - high, 1 - mass, high])
    return lambda rng, m, n: (
        1.0 * rng.choice(3, m, p=chances),
        1.0 * rng.choice(3, n, p=chances[::-1]),
    )


def _leak_top(share: float) -> _Draw:
    """Scores N(0, 1), but for a share of those inside, which are 4 higher."""
    return lambda rng, m, n: (
        rng.normal(0, 1, m) + 4.0 * (rng.random(m) < share),
        rng.normal(0, 1, n),
    )


LAWS: dict[str, _Draw] = {
    "perfect separation": lambda rng, m, n: (1 + rng.random(m), rng.random(n)),
    **{f"randomised response ε = {e:g}": _respond(e) for e in (0.5, 1, 2, 3)},
    **{
        f"Gaussian μ = {mu:g}": _shift(np.random.Generator.standard_normal, mu)
        for mu in (0.5, 1, 2)
    },
    **{f"Laplace ε = {e:g}": _shift(lambda rng, n: rng.laplace(0, 1, n), e) for e in (1, 2)},
    **{f"revealed with chance {p:g}": _reveal(p) for p in (0.1, 0.5)},
    **{f"3 atoms, ε = {e:g}, mass 0.3": _leak_atoms(e, 0.3) for e in (1, 3)},
    **{f"leak in {share:.0%}": _leak_top(share) for share in (0.02, 0.35)},
}
_SIZES = [(100, 100), (1_000, 1_000), (10_000, 10_000)]
SETTINGS = [
    *(
        Setting(law=law, n_in=m, n_out=n, delta=delta)
        for law, (m, n), delta in itertools.product(LAWS, _SIZES, (1e-5, 0.01))
    ),
    *(
        Setting(law=law, n_in=m, n_out=n, delta=1e-5)
        for law in ("randomised response ε = 2", "Gaussian μ = 1", "3 atoms, ε = 3, mass 0.3")
        for m, n in ((20, 5_000), (5_000, 20))
    ),
    *(Setting(law="perfect separation", n_in=n, n_out=n, delta=0.0) for n in MOST),
]


def main() -> None:
    """Measure what is asked for and write the page."""
    jobs = int(ARGUMENTS[ARGUMENTS.index("--jobs") + 1]) if "--jobs" in ARGUMENTS else 1
    kept = {} if TINY else read_rows()
    if "page" not in ARGUMENTS:
        settings = SETTINGS[::40] if TINY else SETTINGS
        found = joblib.Parallel(jobs, return_as="generator_unordered")(
            joblib.delayed(_measure)(setting, kept.get(setting), "ours" in ARGUMENTS)
            for setting in settings
        )
        for setting, row in found:
            kept[setting] = row
            if not TINY:
                _write_rows(kept)
    write_page(PAGE, page(kept if TINY else read_rows()))


def _measure(
    setting: Setting, kept: dict[str, Any] | None, ours_alone: bool
) -> tuple[Setting, dict[str, Any]]:
    theirs = kept if ours_alone and kept else setting.measure_theirs()
    return setting, {**theirs, "audits": setting.audits, "ours": setting.measure_ours()}


def read_rows() -> dict[Setting, dict[str, Any]]:
    """Return what was measured, by setting."""
    if not RAW.exists():
        return {}
    with RAW.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = ("ours", *THEIRS)
    return {
        Setting(
            law=row["law"],
            n_in=int(row["n_in"]),
            n_out=int(row["n_out"]),
            delta=float(row["delta"]),
        ): {"audits": int(row["audits"]), **{name: float(row[name]) for name in numbers}}
        for row in rows
    }


def _write_rows(kept: dict[Setting, dict[str, Any]]) -> None:
    with RAW.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for setting in (s for s in SETTINGS if s in kept):
            row = {**vars(setting), **kept[setting]}
            writer.writerow(
                [f"{v:.6g}" if isinstance(v, float) else v for v in map(row.get, COLUMNS)]
            )


def compute_ratio(row: dict[str, Any]) -> float:
    """Return our mean bound divided by the largest of theirs; infinite where they prove nothing."""
    best = max(row[name] for name in THEIRS)
    return row["ours"] / best if best > 0 else math.inf


def page(kept: dict[Setting, dict[str, Any]]) -> str:
    """Return the page of what was measured."""
    ratios = {setting: compute_ratio(row) for setting, row in kept.items()}
    worst = min(ratios, key=ratios.__getitem__)
    ahead = sum(ratio >= 0.99 for ratio in ratios.values())
    separate = [
        f"{kept[s]['ours']:.4f} of {MOST[s.n_in]:.4f} at {s.n_in:,} + {s.n_out:,}"
        for s in kept
        if s.law == "perfect separation" and s.delta == 0
    ]
    summary = (
        f"Of {len(kept)} settings ours is at least 0.99 × every one of theirs in {ahead}; the "
        f"least is {ratios[worst]:.3f} ({worst.law}, {worst.n_in:,} + {worst.n_out:,}, "
        f"δ = {worst.delta:g}). Perfect separation at δ = 0 proves, of the most that any valid "
        f"bound can prove: {'; '.join(separate)}."
    )
    header = f"| {' | '.join(_HEADER)} |"
    return _TEXT.format(summary=summary, header=header, rows="\n".join(_lines(kept, ratios)))


def _lines(kept: dict[Setting, dict[str, Any]], ratios: dict[Setting, float]) -> Iterator[str]:
    for s in (s for s in SETTINGS if s in kept):
        means = " | ".join(f"{kept[s][name]:.3f}" for name in ("ours", *THEIRS))
        ratio = f"{ratios[s]:.3f}" if math.isfinite(ratios[s]) else "–"
        yield (
            f"| {s.law} | {s.n_in:,} + {s.n_out:,} | {s.delta:g} | {kept[s]['audits']} | {means} "
            f"| {ratio} |"
        )


if __name__ == "__main__":
    main()
