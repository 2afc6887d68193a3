import math
import warnings

import numpy as np
import pytest

import epsilometer as em
from epsilometer.audits.one_shot import audit_cosines
from epsilometer.errors import EpsilometerWarning, InvalidArgument
from epsilometer.report import page
from epsilometer.stats.sphere_rounds import rounds_epsilon
from tests.oracles import even_normals, too_often

DIMENSION, DELTA = 10**6, 1e-6


def _cosines(mu: float, k: int = 1000) -> np.ndarray:
    return (even_normals(k) + mu) / math.sqrt(DIMENSION)


def _audit(cosines: np.ndarray, **more: object) -> em.AuditResult:
    return audit_cosines(cosines, dimension=DIMENSION, delta=DELTA, **more)  # type: ignore[arg-type]


def test_what_one_sample_says_is_all_there() -> None:
    claim = em.PrivacyClaim(epsilon=5.0, delta=DELTA, adjacency="add_remove")
    audit = _audit(_cosines(3.0), claim=claim, subject="mine", adversary="sees it", seed=4)
    truth = em.gaussian_epsilon(1 / 3, DELTA)
    assert audit.verdict == "refuted"
    assert audit.subject == "mine"
    assert audit.bound.valid
    assert 5 < audit.bound.epsilon < truth
    assert [bound.method for bound in audit.also] == ["cosines", "mean_cosine", "jeffreys"]
    assert [bound.valid for bound in audit.also] == [True, True, False]
    for bound in (audit.bound, *audit.also):
        assert bound.adjacency == "add_remove"
        assert bound.adversary == "sees it"
        assert (bound.n_in, bound.n_out, bound.seed) == (1000, 0, 4)
    fitted, tied = audit.estimates
    assert "fitted" in fitted.method
    assert "tied" in tied.method
    for estimate in (fitted, tied):
        assert estimate.low < truth < estimate.high
        assert estimate.epsilon == pytest.approx(truth, rel=0.02)
        assert not estimate.refutes(0.0)
    assert audit.attack.auc == pytest.approx(0.983, abs=0.002)  # Φ(3/√2)


def test_unequal_participation_has_no_bound_that_rests_on_equal() -> None:
    audit = _audit(_cosines(3.0), participation="unequal")
    assert "mean_cosine" not in [bound.method for bound in audit.also]


def _largest(mu: float, rng: np.random.Generator, rounds: int = 100) -> np.ndarray:
    """The largest cosine over rounds of canaries that took part in one of them, or in none."""
    elsewhere = rng.normal(size=(1000, rounds - 1)).max(axis=1)
    return np.maximum(elsewhere, rng.normal(mu, 1, 1000)) / math.sqrt(DIMENSION)


def test_maxima_of_rounds_are_compared_with_unobserved_ones() -> None:
    rng = np.random.default_rng(0)
    audit = _audit(_largest(5.0, rng), unobserved=_largest(0.0, rng))
    truth, allowed = rounds_epsilon(5.0, 100, DELTA), em.gaussian_epsilon(1 / 5, DELTA)
    assert audit.bound.method == "clopper_pearson"
    assert (audit.bound.n_in, audit.bound.n_out) == (1000, 1000)
    assert 2 < audit.bound.epsilon < truth
    assert [bound.valid for bound in audit.also] == [False]
    first, papers = audit.estimates
    assert first.low < truth < first.high < allowed
    assert first.caveats == ()
    # The papers' normal laws are beyond what accounting allows, and the result itself says so.
    assert papers.epsilon > allowed
    assert any("far above what accounting allows" in caveat for caveat in papers.caveats)
    assert "far above what accounting allows" in page.page(audit)


def test_same_seed_same_audit_to_json_and_back() -> None:
    first, second = (_audit(_cosines(1.0), seed=3) for _ in range(2))
    assert em.to_json(first) == em.to_json(second)
    assert em.from_json(em.to_json(first)) == first


def test_is_reported() -> None:
    text = page.page(_audit(_cosines(3.0)))
    assert "mean_cosine" in text
    assert "the law without it is known" in text


def test_true_claims_stand() -> None:
    rng = np.random.default_rng(1)
    claim = em.PrivacyClaim(epsilon=em.gaussian_epsilon(1 / 1.5, DELTA), delta=DELTA)
    refuted = 0
    for _ in range(12):
        audit = _audit(rng.normal(1.5, 1, 300) / 1e3, claim=claim)
        refuted += audit.verdict == "refuted"
    assert not too_often(refuted, 12)


def test_few_canaries_are_warned_of() -> None:
    with pytest.warns(EpsilometerWarning, match="299 canaries are few"):
        _audit(_cosines(1.0, 299))
    with pytest.warns(EpsilometerWarning, match="20 canaries are few"):
        _audit(_cosines(1.0), unobserved=_cosines(0.0, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _audit(_cosines(1.0, 300))


def test_crowded_canaries_are_told() -> None:
    crowded = audit_cosines(_cosines(1.0) * 10, dimension=5000, delta=DELTA)
    assert any("many for 5000 dimensions" in caveat for caveat in crowded.bound.caveats)
    assert not any("dimensions" in caveat for caveat in _audit(_cosines(1.0)).bound.caveats)


@pytest.mark.parametrize(
    ("cosines", "more", "told"),
    [
        ([], {}, "nothing was audited"),
        ([math.nan] * 500, {}, "500 nan of 500"),
        (np.zeros(500), {}, "update is zero"),
        (np.full(500, 0.001), {}, "that differ"),
        ([0.001], {}, "One shows no spread"),
        (_cosines(1.0), {"dimension": 999}, "as many canaries as dimensions"),
        (_cosines(1.0), {"participation": "often"}, "'equal' or 'unequal'"),
        (_cosines(1.0), {"unobserved": [math.nan] * 500}, "500 nan of 500"),
        (_cosines(1.0), {"claim": em.PrivacyClaim(epsilon=1.0, delta=1e-3)}, "claim's δ"),
    ],
)
@pytest.mark.filterwarnings("ignore::epsilometer.errors.EpsilometerWarning")
def test_bad_input_is_told(cosines: object, more: dict, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        audit_cosines(cosines, **{"dimension": DIMENSION, "delta": DELTA, **more})  # type: ignore[arg-type]
