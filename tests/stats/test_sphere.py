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


def test_bad_arguments_are_told() -> None:
    for call in (
        lambda: em.cosine_cdf(1.5, 10),
        lambda: em.cosine_cdf(0.0, 1),
        lambda: em.cosine_quantile(-0.1, 10),
        lambda: em.cosine_cdf(float("nan"), 10),
    ):
        with pytest.raises(InvalidArgument, match="Expected"):
            call()
