"""What is true of every attack, and of how attacks are judged."""

import csv
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import scipy.special
import scipy.stats
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from epsilometer import InProcess
from epsilometer.audits.classifier.attacks.evaluation import (
    RecordScores,
    evaluate,
    evaluate_groups,
    find_mismatch,
    pool_pdtp,
)
from epsilometer.audits.classifier.attacks.shadow_attacks import (
    distance,
    frequency,
    lira,
    rmia,
    threshold,
    untargeted,
)
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, shadow_pool
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.clusters import advantage_at
from epsilometer.types import FloatArray, IntArray
from tests.audits.classifier.attacks.pools import FLAKE, a_pool, memberships

Attack: TypeAlias = Callable[[ShadowPool, Any, np.random.Generator], RecordScores]
ATTACKS: dict[str, Attack] = {
    "untargeted": lambda pool, target, rng: untargeted(pool, target, rng=rng),
    "distance": lambda pool, target, rng: distance(pool, target),
    "distance at full precision": lambda pool, target, rng: distance(
        pool, target, pairs=None, binned=False
    ),
    "frequency": lambda pool, target, rng: frequency(pool, target),
    "loss": lambda pool, target, rng: threshold(pool, target),
    "loss by class": lambda pool, target, rng: threshold(pool, target, by_class=True),
    "confidence": lambda pool, target, rng: threshold(pool, target, statistic="confidence"),
    "LiRA online": lambda pool, target, rng: lira(pool, target),
    "LiRA offline": lambda pool, target, rng: lira(pool, target, online=False),
    "RMIA online": lambda pool, target, rng: rmia(pool, target),
    "RMIA offline": lambda pool, target, rng: rmia(pool, target, online=False),
}
QUICK = [name for name in ATTACKS if name != "untargeted"]
HERE = InProcess()


@pytest.fixture(scope="module")
def overfitted() -> ShadowPool:
    return shadow_pool(RandomForestClassifier(10), *load_digits(return_X_y=True), engine=HERE)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_overfitted_model_is_found_out(
    name: str, overfitted: ShadowPool, rng: np.random.Generator
) -> None:
    found = evaluate(ATTACKS[name](overfitted, 0, rng), overfitted.member[0], coins=True)
    assert found.p_value < FLAKE
    assert found.auc.low > 0.6
    assert found.advantage.low > 0.1
    assert found.bound.valid
    assert found.bound.epsilon > 0.5  # a forest that knows its records by heart has no ε at all


def adult() -> tuple[Any, Any]:
    """Categories, as texts."""
    path = Path(__file__).parents[3] / "data" / "adult_1500.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = np.array(list(csv.reader(file))[1:])
    return rows[:, :-1], rows[:, -1]


@pytest.fixture(scope="module", params=["breast cancer", "adult"])
def trees(request: pytest.FixtureRequest) -> ShadowPool:
    tree = DecisionTreeClassifier()
    if request.param == "breast cancer":
        return shadow_pool(tree, *load_breast_cancer(return_X_y=True), models=22, engine=HERE)
    # a shadow may not have seen some categories
    encoded = make_pipeline(OneHotEncoder(handle_unknown="ignore"), tree)
    return shadow_pool(encoded, *adult(), models=22, engine=HERE)


@pytest.mark.parametrize("name", [name for name in QUICK if name != "confidence"])  # always sure
@pytest.mark.in_turn(3)
def test_trees_that_know_their_records_by_heart_are_found_out(
    name: str, trees: ShadowPool, rng: np.random.Generator
) -> None:
    # three targets together, so that a small dataset is enough
    p = [evaluate(ATTACKS[name](trees, at, rng), trees.member[at]).p_value for at in (0, 2, 4)]
    assert scipy.stats.combine_pvalues(p).pvalue < 1e-3


class Deaf:
    """Learns nothing from its records: what it says is drawn from its seed."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def __call__(self, X: FloatArray, y: IntArray, seed: int) -> Any:  # noqa: N803
        def predict(X: FloatArray) -> FloatArray:  # noqa: N803
            taste = np.random.default_rng(0).normal(size=(len(X), self.classes))
            own = np.random.default_rng(seed).normal(size=taste.shape)
            return np.asarray(scipy.special.log_softmax(taste + own, axis=1))

        return predict


@pytest.mark.parametrize("name", ATTACKS)
def test_a_model_that_ignored_its_records_is_not(name: str, rng: np.random.Generator) -> None:
    X, y = load_digits(return_X_y=True)  # noqa: N806
    pool = shadow_pool(Deaf(10), X, y, models=12, engine=HERE)
    found = evaluate(ATTACKS[name](pool, 0, rng), pool.member[0], coins=True, confidence=0.999999)
    assert found.auc.low <= 0.5 <= found.auc.high
    assert found.advantage.low <= 0 <= found.advantage.high
    assert found.bound.epsilon == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_false_alarms_are_as_rare_as_p_values_say(name: str, rng: np.random.Generator) -> None:
    """Of models that ignored their records. Counting the target's twin among the shadows, or
    leaving out the target alone, fails here.
    """
    alarms, low, pools = 0, 0, 200
    for _ in range(pools):
        pool = a_pool(rng, models=6, n=60)
        found = evaluate(ATTACKS[name](pool, 0, rng), pool.member[0], coins=True)
        alarms += found.p_value <= 0.05
        low += found.p_value >= 0.95
    assert alarms <= scipy.stats.binom.isf(FLAKE, pools, 0.05)
    assert low <= scipy.stats.binom.isf(FLAKE, pools, 0.06)  # ties make p-values of 1


@pytest.mark.parametrize("name", ATTACKS)
def test_higher_means_in(name: str, rng: np.random.Generator) -> None:
    """Sides swapped, scores speak for the other side: a sign that is wrong anywhere fails."""
    pool = a_pool(rng, models=22, n=300, effect=2.5)
    found = ATTACKS[name](pool, 0, rng)
    told = evaluate(found, pool.member[0])
    assert told.auc.low > 0.5
    assert evaluate(found, ~pool.member[0]).auc.high < 0.5
    assert told.accuracy.value > 0.5


@pytest.mark.parametrize("name", ["LiRA online", "distance", "frequency"])
def test_what_is_learned_of_the_sides_is_used(name: str, rng: np.random.Generator) -> None:
    """A record that makes models *less* sure of it: only who compares sides can tell."""
    pool = a_pool(rng, models=22, n=400, effect=-3.0)
    assert evaluate(ATTACKS[name](pool, 0, rng), pool.member[0]).auc.low > 0.6
    wrong = ShadowPool.from_arrays(pool.log_proba, ~pool.member, pool.labels)
    told = evaluate(ATTACKS[name](wrong, pool.log_proba[0], rng), pool.member[0])
    assert told.auc.high < 0.4


def test_lira_and_rmia_need_own_labels_only(rng: np.random.Generator) -> None:
    X, y = load_digits(return_X_y=True)  # noqa: N806
    whole, lean = (
        shadow_pool(GaussianNB(), X[:400], y[:400], models=8, keep=keep, engine=HERE)
        for keep in ("all", "own")
    )
    for name in ("LiRA online", "LiRA offline", "RMIA online", "RMIA offline", "loss"):
        np.testing.assert_allclose(
            ATTACKS[name](lean, 0, rng).values, ATTACKS[name](whole, 0, rng).values, atol=1e-4
        )
        given = ATTACKS[name](lean, whole.log_proba[0].astype(np.float64), rng)
        assert given.values.shape == (400,)
    with pytest.raises(InvalidArgument, match="pool with all classes"):
        threshold(lean, 0, statistic="confidence")
    for target in (0, whole.log_proba[0].astype(np.float64)):
        assert find_mismatch(lean, target, lean.member[0]) == find_mismatch(
            whole, target, whole.member[0]
        )


# How attacks are judged.


def scored(values: Any, threshold: float = 0.0) -> RecordScores:
    return RecordScores(attack="mine", values=values, threshold=threshold, convention="")


def test_rates_are_counts() -> None:
    values = [3.0, 2.0, 1.0, -1.0, 4.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    member = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    found = evaluate(scored(values), member, delta=0.0)
    assert found.recall == 0.75
    assert found.precision == 0.75
    assert found.f1 == 0.75
    assert found.advantage.value == pytest.approx(0.75 - 1 / 6)
    parts = Scores(inside=[3.0, 2.0, 1.0, -1.0], outside=[4.0, -2.0, -3.0, -4.0, -5.0, -6.0])
    assert found.advantage == advantage_at(parts, 0.0)
    assert found.accuracy.value == pytest.approx(0.5 + found.advantage.value / 2)
    assert found.auc.value == pytest.approx((3 * 5 + 5) / 24)
    assert [each.tpr.value for each in found.at_low_fpr] == [0.0, 0.0]
    assert len(found.caveats) == 2
    assert np.isnan(evaluate(scored(values, 9.0), member).precision)


def test_rates_at_a_low_fpr_are_those_of_the_curve(rng: np.random.Generator) -> None:
    from epsilometer.stats.tradeoff import tradeoff_curve

    member = rng.random(5000) < 0.5
    values = np.round(rng.normal(1.0 * member, 1), 2)  # with ties
    found = evaluate(scored(values), member, fpr=(0.01, 0.1), delta=0.0)
    expected = tradeoff_curve(scored(values).split(member)).tpr_at([0.01, 0.1])
    assert [each.tpr.value for each in found.at_low_fpr] == pytest.approx(list(expected))
    inside = scored(values).split(member).inside.size
    for each in found.at_low_fpr:
        exact = scipy.stats.binomtest(round(each.tpr.value * inside), inside).proportion_ci(0.95)
        assert (each.tpr.low, each.tpr.high) == pytest.approx((exact.low, exact.high))
        assert each.fpr_high > each.fpr


def test_the_p_value_is_that_of_mann_and_whitney(rng: np.random.Generator) -> None:
    for shift in (-0.5, 0.0, 0.4):
        member = rng.random(80) < 0.4
        values = np.round(rng.normal(shift * member, 1), 1)
        parts = scored(values).split(member)
        expected = scipy.stats.mannwhitneyu(
            parts.inside, parts.outside, alternative="greater", method="asymptotic"
        )
        found = evaluate(scored(values), member).p_value
        assert found == pytest.approx(expected.pvalue, rel=1e-9)
    assert evaluate(scored(np.ones(40)), np.arange(40) < 20).p_value == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_intervals_hold_the_truth_as_often_as_they_say(
    shift: float, rng: np.random.Generator
) -> None:
    auc = scipy.stats.norm.cdf(shift / np.sqrt(2))
    advantage = 2 * scipy.stats.norm.cdf(shift / 2) - 1
    missed_auc, missed_advantage, audits = 0, 0, 250
    for _ in range(audits):
        member = rng.random(120) < 0.5
        found = evaluate(
            scored(rng.normal(shift * member, 1), shift / 2), member, confidence=0.9, delta=0.0
        )
        missed_auc += not found.auc.low <= auc <= found.auc.high
        missed_advantage += not found.advantage.low <= advantage <= found.advantage.high
    # DeLong's interval is an approximation: at 60 records a side it may miss 3 % oftener
    assert missed_auc <= scipy.stats.binom.isf(FLAKE, audits, 0.13)
    assert missed_advantage <= scipy.stats.binom.isf(FLAKE, audits, 0.1)


@pytest.mark.slow
def test_the_bound_is_wrong_no_oftener_than_it_says(rng: np.random.Generator) -> None:
    """Each record of one run tells its coin by randomised response of ε = 1."""
    wrong, best, audits = 0, 0.0, 300
    for _ in range(audits):
        member = rng.random(300) < 0.5
        honest = rng.random(300) < scipy.special.expit(1.0)
        found = evaluate(
            scored((member == honest) + 1e-9 * rng.random(300)),
            member,
            coins=True,
            confidence=0.9,
            delta=0.0,
        )
        wrong += found.bound.refutes(1.0)
        best = max(best, found.bound.epsilon)
    assert wrong <= scipy.stats.binom.isf(FLAKE, audits, 0.1)
    assert best > 0.6  # and it is not idle


def test_without_coins_nothing_is_proved(rng: np.random.Generator) -> None:
    member = rng.random(400) < 0.5
    leaking = scored(5.0 * member)
    proved, told = (evaluate(leaking, member, coins=coins).bound for coins in (True, False))
    assert proved.refutes(1.0)
    assert proved.adjacency == "add_remove"
    assert 0 < told.epsilon < proved.epsilon  # of a fixed number less is proved
    assert not told.refutes(1.0)
    assert "fair coin" in told.caveats[-1]


def test_small_groups_have_no_figures(rng: np.random.Generator) -> None:
    member = np.arange(200) % 2 == 0
    groups = np.repeat(["many", "few", "one-sided"], [100, 38, 62])
    member[138:] = True
    found = evaluate_groups(scored(rng.normal(size=200)), member, groups, delta=0.0)
    assert [(each.group, each.performance is None) for each in found] == [
        ("few", True),
        ("many", False),
        ("one-sided", True),
    ]
    (many,) = (each.performance for each in found if each.performance)
    assert (many.n_in, many.n_out) == (50, 50)


@pytest.mark.parametrize("member", [[1, 0], [1, 1, 1], [0, 0, 0], [0, 1, 2], [[1], [0], [1]]])
def test_who_was_in_must_be_known_of_all(member: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"truth value|inside and outside"):
        evaluate(scored([1.0, 2.0, 3.0]), member)
    with pytest.raises(InvalidArgument, match="group for each of 3"):
        evaluate_groups(scored([1.0, 2.0, 3.0]), [1, 0, 1], ["a"])


def test_a_target_trained_in_another_way_is_noticed() -> None:
    X, y = load_breast_cancer(return_X_y=True)  # noqa: N806
    shallow = shadow_pool(DecisionTreeClassifier(max_depth=1), X, y, models=20, engine=HERE)
    deep = shadow_pool(DecisionTreeClassifier(), X, y, models=20, engine=HERE)
    said = find_mismatch(shallow, deep.log_proba[0], deep.member[0])
    assert "accuracy on records inside is 1.000" in said[0]
    assert find_mismatch(shallow, 0, shallow.member[0]) == ()
    some = np.arange(569) < 60
    model = DecisionTreeClassifier(max_depth=1, random_state=0).fit(X[some], y[some])
    said = find_mismatch(shallow, model.predict_log_proba(X), some)
    assert "trained on 60 of these records" in said[-1]


def test_a_target_trained_as_its_shadows_is_seldom_called_unlike() -> None:
    X, y = load_breast_cancer(return_X_y=True)  # noqa: N806
    pool = shadow_pool(GaussianNB(), X, y, models=80, engine=HERE)
    alarms = sum(bool(find_mismatch(pool, at, pool.member[at])) for at in range(80))
    # three comparisons at 1 % each; accuracies of 80 overlapping halves are not independent
    assert alarms <= scipy.stats.binom.isf(FLAKE, 80, 0.03)


def test_shadows_that_nobody_was_in_have_no_accuracy_to_compare(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=6, n=40)
    held_out = ShadowPool.from_arrays(pool.log_proba, np.zeros_like(pool.member), pool.labels)
    said = find_mismatch(held_out, pool.log_proba[0], pool.member[0])
    assert not any("nan" in sentence for sentence in said)
    assert "the shadows on 0 to 0" in said[-1]


def test_risk_from_the_pool_is_above_its_floor_where_models_remember(
    overfitted: ShadowPool, rng: np.random.Generator
) -> None:
    risk = pool_pdtp(overfitted, rng=rng)
    assert "estimate" in risk.caveats[0]
    assert scipy.stats.wilcoxon(risk.values, risk.floor, alternative="greater").pvalue < FLAKE
    deaf = a_pool(rng, models=20, n=300)
    risk = pool_pdtp(deaf, rng=rng)
    assert scipy.stats.wilcoxon(risk.values, risk.floor).pvalue > FLAKE


def test_risk_from_the_pool_is_a_difference_of_means(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=9, n=20, effect=2.0)
    risk = pool_pdtp(pool, rng=rng).values
    seen = np.maximum(pool.log_proba, np.log(0.005))
    for record in range(20):
        at = pool.member[:, record]
        expected = np.abs(seen[at, record].mean(axis=0) - seen[~at, record].mean(axis=0)).max()
        assert risk[record] == pytest.approx(expected, rel=1e-5)


def test_rare_records_that_leave_a_mark_are_the_riskiest(rng: np.random.Generator) -> None:
    X, y = load_breast_cancer(return_X_y=True)  # noqa: N806
    flipped = y.copy()
    flipped[:5] = 1 - flipped[:5]
    pool = shadow_pool(
        LogisticRegression(C=10, max_iter=1000), X / X.std(axis=0), flipped, models=20, engine=HERE
    )
    risk = pool_pdtp(pool, rng=rng).values
    assert np.median(risk[:5]) > np.quantile(risk, 0.9)


def test_half_the_coins_of_a_pair_are_the_others(rng: np.random.Generator) -> None:
    member = memberships(rng, 6, 50)
    assert (member[0::2] ^ member[1::2]).all()
