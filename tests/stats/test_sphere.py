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


@pytest.mark.parametrize("d", [5, 20, 101, 3000])
def test_deep_tails_go_on_as_the_shallow_ones(d: int) -> None:
    """The continued fraction, where the plain tail does not underflow yet."""
    x = np.array([0.3, 0.5, 0.7, 0.95])
    plain = np.log(np.maximum(sphere.cosine_sf(x, d), 1e-300))
    seen = plain > -600
    deep = sphere._log_tail(x, (d - 1) / 2)
    np.testing.assert_allclose(deep[seen], plain[seen], rtol=1e-10)


def test_ends_and_middle_of_the_law() -> None:
    ends = [-1.0, 0.0, 1.0]
    assert em.cosine_quantile([0.0, 0.5, 1.0], 10).tolist() == ends
    assert em.cosine_cdf(ends, 10).tolist() == [0.0, 0.5, 1.0]
    assert sphere.cosine_logsf([1.0, -1.0], 10).tolist() == [-math.inf, 0.0]
    assert sphere.cosine_logsf(0.9999, 10**6) > -math.inf


def test_cosines_are_kept_within_one_and_in_double_precision() -> None:
    rounded = np.array([-1 - 1e-6, 0.3, 1 + 1e-6], np.float32)
    kept = sphere.check_cosines(rounded, dimension=3)
    assert kept.dtype == np.float64
    assert kept.tolist() == [-1.0, float(np.float32(0.3)), 1.0]
    some = np.array([0.1, 0.3], np.float32)
    for call in (em.cosine_cdf, em.cosine_quantile, sphere.cosine_sf, sphere.cosine_logsf):
        assert call(some, 10).tolist() == call(some.astype(np.float64), 10).tolist()


@pytest.mark.parametrize("q", [-0.1, 1.1, 2.0, math.nan])
def test_shares_that_cannot_be_are_told(q: float) -> None:
    with pytest.raises(InvalidArgument, match="Expected q"):
        em.cosine_quantile([0.5, q], 10)


def test_nothing_gained_is_nothing_shown() -> None:
    gain, log_loss = np.array([0.5, 0.0, -0.1, 0.1]), np.log([0.1, 0.1, 0.1, 0.2])
    assert sphere.log_ratio(gain, log_loss) == pytest.approx([math.log(5), 0, 0, 0])
    assert sphere.log_ratio(np.array([0.0]), np.array([-math.inf])) == 0.0
