"""Screens order records; what they pass over is sampled, and limits on shares stay valid."""

import numpy as np
import pytest
import scipy.stats
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import epsilometer as em
from epsilometer import InProcess
from epsilometer.audits.classifier.leave_one_out.chosen import choose_records, choose_screened
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.audits.classifier.leave_one_out.screens import (
    CITES,
    SCREENS,
    screen_records,
)
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.errors import InvalidArgument
from epsilometer.stats.membership import count_unseen, share_above

HERE = InProcess()
X, Y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)[:200]
Y = Y[:200]


def test_influence_is_the_change_of_a_logistic_regression() -> None:
    """The surrogate is the model here, but for the penalty on its intercept."""
    exact = pdtp(LogisticRegression(), X, Y).values
    for screen in ("influence", "per-instance"):
        found = screen_records(LogisticRegression(), X, Y, screen=screen)
        assert scipy.stats.spearmanr(found, exact).statistic > 0.95, screen
    close = screen_records(LogisticRegression(), X, Y, screen="influence")
    assert np.median(np.abs(close / exact - 1)) < 0.25  # to first order; 1.06 if halves were summed


def test_halves_find_the_riskiest_of_a_tree() -> None:
    tree = DecisionTreeClassifier(random_state=0)
    exact = pdtp(tree, X, Y, engine=HERE).values
    riskiest = np.argsort(-exact, kind="stable")[:10]
    found = screen_records(tree, X, Y, engine=HERE)
    top = np.argsort(-found, kind="stable")[:40]
    assert np.isin(riskiest, top).sum() >= 6  # 2 by chance, 6 or more once in 700 times


@pytest.mark.parametrize("screen", SCREENS)
def test_same_seed_same_order_for_several_classes(screen: str) -> None:
    data = load_iris(return_X_y=True)
    one, other = (
        screen_records(GaussianNB(), *data, screen=screen, seed=4, engine=HERE)  # type: ignore[arg-type]
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, other)
    assert one.shape == (150,)
    assert np.isfinite(one).all()
    assert (one >= 0).all()
    assert CITES[screen] in BIBLIOGRAPHY


@pytest.mark.parametrize(
    ("X", "changed", "said"),
    [
        (X, {"screen": "luck"}, "screen"),
        (np.array([["a"], ["b"]] * 100), {"screen": "leverage"}, "numbers"),
        (np.zeros((200, 2001)), {"screen": "influence"}, "subsamples"),
    ],
)
def test_what_a_screen_cannot_rank_is_refused(X: object, changed: dict, said: str) -> None:  # noqa: N803
    with pytest.raises(InvalidArgument, match=said):
        screen_records(GaussianNB(), X, Y, **changed)


def test_half_is_screened_and_half_is_drawn() -> None:
    chosen = choose_records("screen:20", 200, seed=1, screen=lambda: np.arange(200.0))
    np.testing.assert_array_equal(chosen.records[chosen.screened], np.arange(190, 200))
    drawn = chosen.records[~chosen.screened]
    assert drawn.size == 10
    assert drawn.max() < 190
    assert chosen.unseen == count_unseen(10, 190)
    again = choose_screened(np.arange(200.0), 20, seed=1)
    np.testing.assert_array_equal(chosen.records, again.records)
    every = choose_records("screen:300", 200, seed=1, screen=lambda: np.arange(200.0))
    assert every.unseen == 0
    assert every.records.size == 200
    assert not every.screened.any()
    with pytest.raises(InvalidArgument, match="sample:500"):
        choose_records("screen:20", 200, seed=1)  # where nothing screens


def test_pdtp_of_screened_records_says_what_it_leaves_open() -> None:
    found = pdtp(GaussianNB(), X, Y, records="screen:40", engine=HERE)
    assert found.records.size == 40
    assert found.screened.sum() == 20
    assert any(
        "20 of 200 records were chosen by a screen, 20 were drawn" in c for c in found.caveats
    )


def miss(share: float, *, stratified: bool, trials: int = 2000) -> float:
    """How often the upper limit is below the truth, for a screen that finds every exposed record.

    With a mistake, records that were screened count as drawn by chance.
    """
    rng, of, half = np.random.default_rng(3), 1000, 30
    exposed = int(share * of)
    risk = np.zeros(of, bool)
    risk[-exposed:] = True
    misses = 0
    for _ in range(trials):
        ranked = rng.random(of)  # of no use: chance puts exposed records at its top
        chosen = choose_screened(ranked, 2 * half, seed=int(rng.integers(2**31)))
        above = risk[chosen.records]
        screened = (int(above[chosen.screened].sum()), half) if stratified else (0, 0)
        found = share_above(int(above.sum()), 2 * half, of, screened=screened)
        misses += found.high < share or found.low > share
    return misses / trials


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_limits_of_the_share_hold(share: float) -> None:
    assert miss(share, stratified=True) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


def test_counting_the_screened_as_drawn_would_be_wrong() -> None:
    """A screen that puts all exposed records on top makes the share look far too large."""
    ranked = np.arange(1000.0)
    chosen = choose_screened(ranked, 60, seed=0)
    above = chosen.records >= 980  # 20 of 1,000 are exposed
    seen = int(above.sum())
    assert share_above(seen, 60, 1000).low > 0.2
    found = share_above(seen, 60, 1000, screened=(seen, 30))
    assert found.low <= 0.02 <= found.high


def test_an_audit_of_screened_records_clears_nobody() -> None:
    subject = em.Classifier(
        DecisionTreeClassifier(random_state=0),
        X,
        Y,
        records="screen:20",
        attacks=("loss",),
        shadows=8,
        remedies=0,
        skip_trend=True,
    )
    audit = em.audit(subject, engine=HERE)
    found = audit.one(em.findings.LeaveOneOut)
    assert (found.measured, found.of) == (20, 200)
    assert "feldman2020" in audit.cites
    rules = [each for each in audit.findings if isinstance(each, em.findings.RuleFinding)]
    rule = next(rule for rule in rules if "PDTP" in rule.rule)
    assert rule.outcome != "pass"  # a screen clears nobody
