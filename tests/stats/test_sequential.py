import numpy as np
import pytest

from epsilometer import ConfidenceSequence, PrivacyClaim, Scores
from epsilometer.errors import InvalidArgument
from tests import oracles


def _refuted_at_some_time(audit: ConfidenceSequence, pairs: np.ndarray, claim: float) -> bool:
    for start in range(0, pairs.shape[1], 10):
        audit.update(*pairs[:, start : start + 10])
        if audit.refuted(claim):
            return True
    return False


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_no_look_at_any_time_is_wrong_too_often(epsilon: float, rng: np.random.Generator) -> None:
    """Randomised response: the claim is exactly true, and looked at 30 times."""
    audits, wrong = 2000, 0
    honest = np.exp(epsilon) / (1 + np.exp(epsilon))
    for _ in range(audits):
        inside = rng.random(300) < honest
        outside = rng.random(300) >= honest
        audit = ConfidenceSequence([0.5], delta=0.0)
        pairs = np.stack([inside, outside]).astype(float)
        wrong += _refuted_at_some_time(audit, pairs, epsilon)
    assert not oracles.too_often(wrong, audits)


def test_forgetting_the_price_is_caught(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classic mistake: an interval valid at one time, looked at many times."""
    monkeypatch.setattr(
        ConfidenceSequence,
        "_refutes_now",
        lambda self, epsilon: np.asarray(  # a normal test at the current time, right at ε = 0
            self._inside[0] - np.exp(float(epsilon)) * self._outside[0]
            > 1.645 * np.sqrt(self.pairs / 2)
        ),
    )
    audits, wrong = 400, 0
    for _ in range(audits):
        audit = ConfidenceSequence([0.5], delta=0.0)
        wrong += _refuted_at_some_time(audit, (rng.random((2, 300)) < 0.5).astype(float), 0.0)
    assert oracles.too_often(wrong, audits)


def test_refutes_what_is_false_and_stops_early(rng: np.random.Generator) -> None:
    audit = ConfidenceSequence.from_pilot(
        Scores(rng.normal(3, 1, 200), rng.normal(0, 1, 200)), delta=1e-5
    )
    needed = 0
    while not audit.refuted(PrivacyClaim(epsilon=1.0, delta=1e-5)):
        audit.update(rng.normal(3, 1), rng.normal(0, 1))
        needed += 1
        assert needed < 500
    assert audit.lower_bound().epsilon > 1.0
    assert audit.lower_bound().valid


def test_bound_never_falls_and_does_not_depend_on_how_pairs_came(rng: np.random.Generator) -> None:
    inside, outside = rng.normal(2, 1, 400), rng.normal(0, 1, 400)
    one_by_one = ConfidenceSequence([1.0, 2.0], delta=1e-5)
    at_once = ConfidenceSequence([1.0, 2.0], delta=1e-5)
    at_once.update(inside, outside)
    best = 0.0
    for a, b in zip(inside, outside, strict=True):
        one_by_one.update(a, b)
    assert one_by_one.lower_bound() == at_once.lower_bound()
    for a, b in zip(-inside, outside, strict=True):  # evidence to the contrary
        one_by_one.update(a, b)
        assert one_by_one.lower_bound().epsilon >= best
        best = one_by_one.lower_bound().epsilon


def test_wealth_is_what_the_bets_pay(rng: np.random.Generator) -> None:
    """Against the product over pairs, one stake at a time."""
    inside, outside, delta, epsilon = rng.normal(1, 1, 50), rng.normal(0, 1, 50), 0.01, 0.3
    audit = ConfidenceSequence([0.5], delta=delta)
    audit.update(inside, outside)
    stakes = 0.9 * 0.5 ** np.arange(24)
    for row, (caught, false) in enumerate(
        [(inside >= 0.5, outside >= 0.5), (outside < 0.5, inside < 0.5)]
    ):
        x = caught - np.exp(epsilon) * false - delta
        allowed = stakes < 1 / (np.exp(epsilon) + delta)
        wealth = [np.prod(1 + stake * x) for stake in stakes[allowed]]
        expected = np.log(np.sum(wealth) / 24)
        assert audit._log_wealth(epsilon)[row, 0] == pytest.approx(expected)


def test_bad_calls_are_told() -> None:
    audit = ConfidenceSequence([0.0], delta=1e-5)
    for call in (
        audit.lower_bound,
        lambda: audit.update([1.0, 2.0], [1.0]),
        lambda: audit.update(float("nan"), 1.0),
        lambda: audit.refuted(PrivacyClaim(epsilon=1.0, delta=1e-6)),
        lambda: audit.refuted(-1.0),
        lambda: ConfidenceSequence([], delta=1e-5),
        lambda: ConfidenceSequence([0.0], delta=2.0),
    ):
        with pytest.raises(InvalidArgument, match="Expected"):
            call()
    assert not audit.refuted(1.0)
