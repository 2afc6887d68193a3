import math

import numpy as np
import pytest

import epsilometer as em
from epsilometer.errors import InvalidArgument
from epsilometer.stats import sphere
from tests.conftest import cases


@pytest.mark.parametrize(("inputs", "expected"), cases("c03", "cosine-d"))
def test_null_law_of_reference(inputs: dict, expected: dict) -> None:
    t, d = inputs["t"], inputs["d"]
    assert em.cosine_cdf(t, d) == pytest.approx(expected["cdf"], rel=1e-9)
    assert sphere.cosine_sf(t, d) == pytest.approx(expected["sf"], rel=1e-9)
    assert sphere.cosine_logsf(t, d) == pytest.approx(expected["log_sf"], rel=1e-9)


@pytest.mark.parametrize(("inputs", "expected"), cases("c03", "cosine-isf"))
def test_quantiles_of_reference(inputs: dict, expected: dict) -> None:
    found = -em.cosine_quantile(inputs["q"], inputs["d"])
    assert found == pytest.approx(expected["isf"], rel=1e-8)


def test_law_of_random_directions(rng: np.random.Generator) -> None:
    for d in (2, 3, 17):
        vectors = rng.normal(size=(200_000, d))
        cosines = vectors[:, 0] / np.linalg.norm(vectors, axis=1)
        for x in (-0.7, 0.0, 0.2, 0.9):
            share, truth = np.mean(cosines <= x), float(em.cosine_cdf(x, d))
            assert share == pytest.approx(truth, abs=6 * math.sqrt(truth * (1 - truth) / 200_000))


def test_quantile_inverts_the_law() -> None:
    q = np.array([1e-12, 1e-3, 0.2, 0.5, 0.9])
    for d in (5, 100, 10**7, 10**9):
        np.testing.assert_allclose(em.cosine_cdf(em.cosine_quantile(q, d), d), q, rtol=1e-7)


def _cosines(inputs: dict) -> np.ndarray:
    rng = np.random.default_rng(inputs["seed"])
    cosines = rng.normal(inputs["m"], inputs["s"], inputs["k"]) / math.sqrt(inputs["d"])
    if inputs["decimals"] is not None:
        root = math.sqrt(inputs["d"])
        cosines = np.round(cosines * root, inputs["decimals"]) / root
    return cosines


@pytest.mark.parametrize(
    ("inputs", "expected"), [c for c in cases("c05", "eps-lo") if "first" in str(c.values[0])]
)
def test_epsilon_lo_of_the_one_shot_paper(inputs: dict, expected: dict) -> None:
    cosines = _cosines(inputs)
    for confidence, name in ((0.95, "exact_one_sided_ge"), (0.975, "exact_two_sided_ge")):
        found = sphere.one_shot_epsilon_lo(
            cosines, dimension=inputs["d"], delta=inputs["delta"], confidence=confidence
        )
        assert found.epsilon == pytest.approx(expected[name], rel=1e-7, abs=1e-9)
        assert not found.valid


def test_epsilon_lo_of_the_one_shot_paper_is_wrong_as_often_as_the_reference_says() -> None:
    [case] = cases("c05", "eps-lo-exceeds")
    inputs, expected = case.values
    rng = np.random.default_rng(99)
    rows = rng.normal(1 / inputs["sigma"], 1, size=(inputs["sims"], 1000)) / 1e3
    wrong = sum(
        sphere.one_shot_epsilon_lo(row, dimension=inputs["d"], delta=inputs["delta"]).epsilon
        > inputs["true_eps"]
        for row in rows[:300]
    )
    # The reference has a normal null and 2,000 rows; the first 300 of them scatter around it.
    assert wrong / 300 == pytest.approx(expected["one_sided_ge"], abs=0.08)


def test_bad_arguments_are_told() -> None:
    for call in (
        lambda: em.cosine_cdf(1.5, 10),
        lambda: em.cosine_cdf(0.0, 1),
        lambda: em.cosine_quantile(-0.1, 10),
        lambda: em.cosine_cdf(float("nan"), 10),
    ):
        with pytest.raises(InvalidArgument, match="Expected"):
            call()
