"""Numbers by which docs/papers correct the papers, each computed again and looked for there."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from epsilometer import rules
from epsilometer.accounting import rdp
from epsilometer.core.scores import Scores
from epsilometer.stats.binomial import clopper_pearson_upper
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.gaussians import gaussian_epsilon

PAGES = Path(__file__).parents[2] / "docs" / "papers"
CASES = Path(__file__).parents[1] / "reference" / "cases.json"


def says(key: str, *texts: str) -> None:
    page = PAGES.joinpath(f"{key}.md").read_text("utf-8")
    assert [text for text in texts if text not in page] == []


def test_one_delta_gives_every_analytical_epsilon_of_emnist() -> None:
    printed = {0.16: "33.8", 0.18: "28.1", 0.195: "24.8", 0.25: "16.9", 0.315: "12.0"}

    def fits(delta: float) -> bool:
        return all(f"{gaussian_epsilon(z, delta):.1f}" == text for z, text in printed.items())

    assert fits(0.007641)
    assert fits(0.007738)
    assert not fits(0.007640)
    assert not fits(0.007739)
    assert not fits(3383**-1.1)
    says("andrew2024", ", ".join(printed.values()), "[0.007641, 0.007738]")


def test_the_variance_of_theorem_3_3_is_twice_what_is_printed(rng: np.random.Generator) -> None:
    d, k, sigma, draws = 50, 100, 0.5, 2_000
    pairs, noise, square = 2 * k * (k - 1) / d, 4 * k * sigma**2, 2 * sigma**4 * d
    right, printed = (pairs + noise + square) / d**2, (pairs / 2 + noise / 2 + square) / d**2
    found = []
    for _ in range(draws // 500):
        canaries = rng.standard_normal((500, k, d), dtype=np.float32)
        canaries /= np.linalg.norm(canaries, axis=2, keepdims=True)
        total = canaries.sum(axis=1) + sigma * rng.standard_normal((500, d))
        found.append(np.sum(total**2, axis=1) / d)
    # The variance of a variance, of about normal numbers; 5 of its standard deviations.
    assert np.var(found) == pytest.approx(right, rel=5 * math.sqrt(2 / draws) * 1.2)
    assert np.var(found) > 1.5 * printed
    says("andrew2024", f"{right:.4f}, printed {printed:.4f}")


def test_where_the_one_shot_lower_end_ends() -> None:
    bound = epsilon_lower_bound(
        Scores(np.ones(1000), np.zeros(1000)),
        delta=34_000**-1.1,
        rule=rules.Published(),
        method="jeffreys",
    )
    assert f"{bound.epsilon:.3f}" == "6.254"
    says("andrew2024", "6.254")


def test_how_often_normal_samples_are_above_the_critical_value() -> None:
    """0.574 is exceeded with a probability of 15 %."""
    three, two = (scipy.stats.binom.sf(least - 1, 15, 0.15) for least in (3, 2))
    says("andrew2024", f"is {three:.0%}".replace("%", " %"), f"not {two:.0%}".replace("%", " %"))


def test_twenty_identical_scores() -> None:
    """Algorithm 1 walks over ten scores of one side first, as if no threshold were a tie."""
    limit = clopper_pearson_upper(0, 10, alpha=0.05)
    says("annamalai2025", f"ε = {math.log((1 - limit) / limit):.2f}")


def test_noise_of_the_bayesian_paper() -> None:
    def reported(noise: float) -> float:
        return rdp.poisson_epsilon(
            noise_multiplier=noise, sampling_rate=256 / 50_000, steps=60 * 195, delta=1e-5
        )

    says("shibahara2021", f"({reported(0.5):.4f} at", f"would be {reported(math.sqrt(0.5)):.1f}")


def test_what_does_not_follow_from_precision_and_recall() -> None:
    """A target is in half of the models."""
    precision, recall = 0.847, 0.909
    wrong = recall * (1 - precision) / precision
    accuracy = (recall + 1 - wrong) / 2
    says("long2017", f"make {accuracy:.3f}, not 0.853")
    for precision, recall, printed in ((0.531, 0.440, 0.436), (0.593, 0.825, 0.717)):
        says("long2017", f"{printed}", f"{scipy.stats.hmean([precision, recall]):.3f}")


def test_the_p_of_no_correlation() -> None:
    r, n = -0.0008, 100
    t = r * math.sqrt((n - 2) / (1 - r**2))
    says("long2017", f"p = {2 * scipy.stats.t.sf(abs(t), n - 2):.3f}, not 0.934")


def test_how_often_propositions_6_4_and_6_5_are_exceeded() -> None:
    """Of an independent search; tests of ``leave_one_out.bounds`` check its smallest examples."""
    every = {case["id"]: case["expected"] for case in json.loads(CASES.read_text("utf-8"))}
    for proposition in ("6.4-posterior", "6.5-posterior-tight"):
        found = every[f"stability-search-prop{proposition}-all_y"]
        page = PAGES.joinpath("long2017.md").read_text("utf-8").replace("\n  ", " ")
        assert f"{found['violations']} of {found['tested_records']:,}" in page.replace(
            " records", ""
        )
