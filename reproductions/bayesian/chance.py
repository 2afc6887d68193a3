"""What the paper's ε̂ is where nothing leaks, by the number of runs: it does not fall.

    python reproductions/bayesian/chance.py --sets 50

Models of D against models of D: their statistics are normal numbers of one law on both sides, one
of them or two of a correlation. The paper takes it as a sign of convergence that ε̂ of 100 and of
1,000 repetitions are alike. So it would be of nothing: more runs lower the floor of a rate, and
offer thresholds as many more.
"""

import argparse

import numpy as np
from estimates import estimate, over

CORRELATIONS = {
    "one statistic": None,
    "two, correlation 0": 0.0,
    "two, correlation −0.9": -0.9,
    "two, correlation −0.99": -0.99,
}


def estimates_of_nothing(
    runs: int, sets: int, correlation: float | None, seed: int, *, coins: bool = False
) -> list[float]:
    """ε̂ of each set of so many runs per side, all of one law.

    With coins, each of twice as many runs is of either side by a coin, as Step 2 of the paper.
    """
    law = [[1.0]] if correlation is None else [[1.0, correlation], [correlation, 1.0]]
    found = []
    for rng in np.random.default_rng([seed, runs, coins]).spawn(sets):
        seen = rng.multivariate_normal(np.zeros(len(law)), law, 2 * runs)
        inside = rng.binomial(2 * runs, 0.5) if coins else runs
        found.append(estimate(seen[:inside], seen[inside:]))
    return found


def measured(
    *, runs: list[int], repetitions: list[int], sets: int, seed: int = 0, **_: object
) -> dict[str, str]:
    """By statistics and runs per side, or repetitions that a coin gives to either side."""
    sizes = [(count, f"{count:,} runs", False) for count in runs]
    sizes += [(count // 2, f"{count:,} repetitions", True) for count in repetitions]
    return {
        f"nothing leaks, {name}, {words}": over(
            estimates_of_nothing(count, sets, correlation, seed, coins=coins)
        )
        for name, correlation in CORRELATIONS.items()
        for count, words, coins in sizes
    }


def main() -> None:
    """Print one line per law and number of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repetitions", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--sets", type=int, default=50)
    for name, value in measured(**vars(parser.parse_args())).items():
        print(f"{name}: {value}", flush=True)


if __name__ == "__main__":
    main()
