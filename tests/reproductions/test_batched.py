"""Trials of the batched Gaussian mechanism drawn by their law are as trials that are run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.cli.reproduce import import_from

SCRIPTS = Path(__file__).parents[2] / "reproductions" / "shuffling"
FLAKE = 1e-6


@pytest.fixture(name="batched")
def _batched() -> Iterator[Any]:
    with import_from(SCRIPTS):
        import batched

        yield batched


def test_counts_are_of_the_law_of_trials_that_are_run(batched: Any) -> None:
    """At several false positive rates, as many trials are beyond the threshold as were run."""
    setting = batched.FIGURE_3[2]  # T = 100, σ = 1.5
    trials = 20_000
    rng = np.random.default_rng(5)
    game = batched.BatchedGaussian(
        sampler=batched.Shuffle(), noise_multiplier=setting.sigma, steps=setting.steps, epochs=1
    )
    run = game.play(trials, rng)
    fnr = batched.find_curve(setting)
    drawn = batched.draw_counts(fnr, 2 * trials, rng)
    assert drawn.n_in == drawn.n_out == trials
    for fpr in (0.01, 0.1, 0.5):
        at = int(np.argmin(np.abs(fpr - batched.FPR)))
        threshold = np.quantile(run.outside, 1 - batched.FPR[at])
        missed = int(np.sum(run.inside < threshold))
        # The threshold of the trials scatters as well: twice the variance, and more.
        spread = 3 * np.sqrt(fnr[at] * (1 - fnr[at]) / trials)
        assert abs(missed / trials - fnr[at]) < 5 * spread
        # Bins rise with the score, so that the rates of FPR come from above.
        beyond = int(drawn.outside_bins[::-1][: at + 1].sum())
        assert scipy.stats.binomtest(beyond, trials, float(batched.FPR[at])).pvalue > FLAKE
        caught = int(drawn.inside_bins[::-1][: at + 1].sum())
        assert scipy.stats.binomtest(caught, trials, float(1 - fnr[at])).pvalue > FLAKE


def test_epsilon_of_drawn_trials_is_that_of_trials_that_are_run(batched: Any) -> None:
    setting = batched.FIGURE_3[1]._replace(observations=4_000)
    fnr = batched.find_curve(setting)
    drawn = [
        batched._bound(batched.draw_counts(fnr, 4_000, rng), batched.Published())
        for rng in np.random.default_rng(1).spawn(12)
    ]
    run = [batched.found(setting, 4_000, "cpu", seed)["uncorrected"] for seed in range(12)]
    assert scipy.stats.ttest_ind(drawn, run).pvalue > 1e-3
    assert scipy.stats.ttest_ind(np.array(drawn) + 1, run).pvalue < 1e-3  # and it would be seen
