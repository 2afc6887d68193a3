import math
import warnings
from typing import Any

import numpy as np
import pytest

import epsilometer as em
from epsilometer.audits.federated.cosine_audit import compute_cosine_power
from epsilometer.core.serialisation import from_json
from epsilometer.errors import EpsilometerWarning, InvalidArgument
from epsilometer.report import page
from epsilometer.stats.sphere import cosine_bound
from epsilometer.stats.sphere_estimates import rounds_epsilon
from tests.oracles import even_normals, too_often

DIMENSION, DELTA = 10**6, 1e-6


def _cosines(mu: float, k: int = 1000) -> np.ndarray:
    return (even_normals(k) + mu) / math.sqrt(DIMENSION)


def _audit(cosines: object, claim: em.Claim | None = None, **more: Any) -> em.Audit:
    asked = {name: more.pop(name) for name in ("seed", "confidence") if name in more}
    subject = em.Cosines(cosines, **{"dimension": DIMENSION, **more})  # type: ignore[arg-type]
    return em.audit(subject, claim, delta=DELTA, **asked)


def test_what_one_sample_says_is_all_there() -> None:
    claim = em.Claim(5.0, delta=DELTA, adjacency="add_remove")
    audit = _audit(_cosines(3.0), claim, title="mine", adversary="sees it", seed=4)
    truth = em.gaussian_epsilon(1 / 3, DELTA)
    assert audit.verdict == "refuted"
    assert audit.subject == "mine"
    (view,) = audit.views
    assert view.bound.valid
    assert 5 < audit.epsilon < truth
    assert [bound.method for bound in view.also] == ["cosines", "mean_cosine", "jeffreys"]
    assert [bound.valid for bound in view.also] == [True, True, False]
    for bound in (view.bound, *view.also):
        assert bound.adjacency == "add_remove"
        assert bound.adversary == "sees it"
        assert (bound.n_in, bound.n_out, bound.seed) == (1000, 0, 4)
    fitted, tied = audit.estimates
    assert "fitted" in fitted.method
    assert "tied" in tied.method
    for estimate in (fitted, tied):
        assert estimate.role == "reference"
        assert estimate.low < truth < estimate.high
        assert estimate.epsilon == pytest.approx(truth, rel=0.02)
        assert not estimate.refutes(0.0)
    assert view.attack.auc == pytest.approx(0.983, abs=0.002)  # Φ(3/√2)


def test_unequal_participation_has_no_bound_that_rests_on_equal() -> None:
    audit = _audit(_cosines(3.0), participation="unequal")
    assert "mean_cosine" not in [bound.method for bound in audit.views[0].also]


def _largest(mu: float, rng: np.random.Generator, rounds: int = 100) -> np.ndarray:
    """The largest cosine over rounds of canaries that took part in one of them, or in none."""
    elsewhere = rng.normal(size=(1000, rounds - 1)).max(axis=1)
    return np.maximum(elsewhere, rng.normal(mu, 1, 1000)) / math.sqrt(DIMENSION)


def test_maxima_of_rounds_are_compared_with_the_law_of_the_largest() -> None:
    rng = np.random.default_rng(0)
    audit = _audit(_largest(5.0, rng), unobserved=_largest(0.0, rng), rounds=100)
    truth, allowed = rounds_epsilon(5.0, 100, DELTA), em.gaussian_epsilon(1 / 5, DELTA)
    (view,) = audit.views
    assert (view.bound.method, view.bound.n_in, view.bound.n_out) == ("cosines", 1000, 0)
    assert "100 rounds" in view.bound.threshold_rule
    assert [bound.method for bound in view.also] == ["cosines", "calibrated", "jeffreys"]
    assert [bound.valid for bound in view.also] == [True, True, False]
    assert 2 * view.also[1].epsilon < audit.epsilon < truth
    first, papers = audit.estimates
    assert first.low < truth < first.high < allowed
    assert first.caveats == ()
    # The papers' normal laws are beyond what accounting allows, and the result itself says so.
    assert papers.epsilon > allowed
    assert any("far above what accounting allows" in caveat for caveat in papers.caveats)
    assert "far above what accounting allows" in page.page(audit)


def test_maxima_need_no_canaries_that_took_no_part() -> None:
    rng = np.random.default_rng(0)
    claim = em.Claim(8.0, delta=DELTA)
    audit = _audit(_largest(5.0, rng), claim, rounds=100)
    assert (audit.verdict, audit.reach, audit.estimates) == ("refuted", math.inf, ())
    assert claim.epsilon < audit.power < em.gaussian_epsilon(1 / 5, DELTA)


def test_samples_of_another_law_are_compared_with_each_other() -> None:
    rng = np.random.default_rng(0)
    (view,) = _audit(_largest(5.0, rng), unobserved=_largest(0.0, rng)).views
    assert (view.bound.method, view.bound.n_out) == ("calibrated", 1000)


def test_orthonormal_canaries_prove_somewhat_more_by_their_mean() -> None:
    means = [
        next(b for b in _audit(_cosines(3.0), orthonormal=known).views[0].also if b.n_out == 0)
        for known in (False, True)
    ]
    assert means[0].epsilon <= means[1].epsilon


def test_many_canaries_for_a_delta_are_told() -> None:
    said = "δ·k = 0.02"
    for delta, expected in ((2e-5, True), (1e-5, False), (1e-6, False)):
        bound = em.audit(em.Cosines(_cosines(1.0), dimension=DIMENSION), delta=delta).bounds[0]
        assert any(said in caveat for caveat in bound.caveats) == expected
        assert bound.valid


def test_same_seed_same_audit_to_json_and_back() -> None:
    first, second = (_audit(_cosines(1.0), seed=3) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert from_json(first.to_json()) == first
    assert first.provenance.supplied == ("cosines",)  # never by value
    assert first.provenance.settings["dimension"] == DIMENSION


def test_is_reported() -> None:
    text = page.page(_audit(_cosines(3.0)))
    assert "mean_cosine" in text
    assert "the distribution without it is known" in text


def test_true_claims_stand() -> None:
    rng = np.random.default_rng(1)
    claim = em.Claim(em.gaussian_epsilon(1 / 1.5, DELTA), delta=DELTA)
    refuted = 0
    for _ in range(12):
        audit = _audit(rng.normal(1.5, 1, 300) / 1e3, claim)
        refuted += audit.verdict == "refuted"
    assert not too_often(refuted, 12)


def test_any_claim_is_within_reach_of_cosines_whose_law_is_known() -> None:
    """A canary that is the update itself had no chance of being it without having taken part."""
    audit = _audit(_cosines(1.0), em.Claim(1e6, delta=DELTA))
    assert (audit.reach, audit.power, audit.verdict) == (math.inf, math.inf, "not refuted")
    assert "could refute any claim; this one less than 4 times in 5" in str(audit)
    assert cosine_bound(np.ones(1000), dimension=DIMENSION, delta=DELTA).epsilon == math.inf
    maxima = _audit(_cosines(1.0), em.Claim(1e6, delta=DELTA), unobserved=_cosines(0.0))
    assert maxima.verdict == "cannot judge"  # 1,000 against 1,000 prove no more than about 6


@pytest.mark.parametrize(
    ("claim", "canaries", "dimension"),
    [(8.0, 1000, 10**6), (3.0, 300, 5000), (2.0, 100, 5000), (20.0, 300, 10**5)],
)
def test_claims_are_refuted_four_times_in_five_at_the_power(
    claim: float, canaries: int, dimension: int
) -> None:
    asked: dict[str, Any] = {"dimension": dimension, "delta": DELTA, "confidence": 0.95}
    power = compute_cosine_power(claim, canaries=canaries, **asked)
    rng, mu, audits = np.random.default_rng(0), 1 / em.gaussian_sigma(power, DELTA), 300
    refuted = 0
    for _ in range(audits):  # the mechanism in a basis that begins with its canaries
        total = rng.normal(size=dimension if dimension < 10**5 else canaries)
        total[:canaries] += mu
        beside = 0.0 if dimension < 10**5 else rng.chisquare(dimension - canaries)
        cosines = total[:canaries] / math.sqrt(float(total @ total) + beside)
        refuted += cosine_bound(cosines, **asked).refutes(claim)
    assert 0.65 < refuted / audits < 0.98  # power is known to a few percent of ε


def test_power_rises_with_the_claim_and_crowded_canaries_have_none() -> None:
    asked: dict[str, Any] = {"dimension": 5000, "delta": DELTA, "confidence": 0.95}
    powers = [compute_cosine_power(claim, canaries=100, **asked) for claim in (1.0, 2.0, 4.0)]
    assert powers == sorted(powers)
    assert all(power > claim for power, claim in zip(powers, (1.0, 2.0, 4.0), strict=True))
    assert compute_cosine_power(20.0, canaries=400, **asked) == math.inf


def test_few_canaries_are_warned_of() -> None:
    with pytest.warns(EpsilometerWarning, match="299 canaries are few"):
        _audit(_cosines(1.0, 299))
    with pytest.warns(EpsilometerWarning, match="20 canaries are few"):
        _audit(_cosines(1.0), unobserved=_cosines(0.0, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _audit(_cosines(1.0, 300))


def test_crowded_canaries_are_told() -> None:
    crowded = _audit(_cosines(1.0) * 10, dimension=5000).bounds[0]
    assert any("many for 5000 dimensions" in caveat for caveat in crowded.caveats)
    assert not any("dimensions" in caveat for caveat in _audit(_cosines(1.0)).bounds[0].caveats)


@pytest.mark.parametrize(
    ("cosines", "more", "told"),
    [
        ([], {}, "nothing was audited"),
        ([math.nan] * 500, {}, "500 nan of 500"),
        (np.zeros(500), {}, "update is zero"),
        (np.full(500, 0.001), {}, "that differ"),
        (_cosines(1.0), {"dimension": 999}, "as many canaries as dimensions"),
        (_cosines(1.0), {"participation": "often"}, "'equal' or 'unequal'"),
        (_cosines(1.0), {"unobserved": [math.nan] * 500}, "500 nan of 500"),
        (_cosines(1.0), {"dimension": 1.5}, "dimension"),
        (_cosines(1.0), {"rounds": 0}, "rounds"),
        (_cosines(1.0), {"claim": em.Claim(1.0, delta=1e-3)}, "delta to be the claim's 0.001"),
    ],
)
@pytest.mark.filterwarnings("ignore::epsilometer.errors.EpsilometerWarning")
def test_bad_input_is_told(cosines: object, more: dict, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        _audit(cosines, **more)


def test_delta_is_needed_and_above_zero() -> None:
    subject = em.Cosines(_cosines(1.0), dimension=DIMENSION)
    with pytest.raises(InvalidArgument, match="Expected delta, got none"):
        em.audit(subject)
    with pytest.raises(InvalidArgument, match="Expected delta in"):
        em.audit(subject, delta=0.0)
