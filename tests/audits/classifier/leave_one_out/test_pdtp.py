"""PDTP as a whole: against reference arrays, and what is said beside the numbers."""
# ruff: noqa: N806 - X, as in scikit-learn

from typing import Any

import numpy as np
import pytest
import scipy.stats
from sklearn.datasets import load_iris
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB
from sklearn.tree import DecisionTreeClassifier

from epsilometer.audits.classifier.leave_one_out.pdtp import changes, dtp_over, pdtp
from epsilometer.engine.engines import InProcess
from epsilometer.errors import InvalidArgument
from epsilometer.stats.membership import count_unseen
from tests.audits.classifier.leave_one_out.brute_force import refitted_logs
from tests.audits.classifier.leave_one_out.reference import reference
from tests.conftest import cases

TIGHT = 1e-9
FLAKE = 1e-6  # chance that what is right fails


@pytest.mark.parametrize("data", ["iris", "breast_cancer"])
@pytest.mark.parametrize(("name", "estimator"), [("gnb", GaussianNB()), ("bnb", BernoulliNB())])
def test_reference_arrays(data: str, name: str, estimator: Any) -> None:
    case = reference(f"{name}_{data}")
    found = pdtp(estimator, case["X"], case["y"])
    assert found.path.startswith("exact: ")
    assert found.floor is None
    assert found.unseen == 0
    np.testing.assert_allclose(np.exp(found.full), case["full"], rtol=TIGHT, atol=TIGHT)
    np.testing.assert_allclose(np.exp(found.without), case["loo_at_t"], rtol=TIGHT, atol=TIGHT)
    np.testing.assert_allclose(found.values, case["pdtp_unbinned"], rtol=TIGHT, atol=TIGHT)
    np.testing.assert_allclose(found.binned, case["pdtp"], rtol=TIGHT, atol=TIGHT)
    np.testing.assert_array_equal(found.edge, (case["pdtp"] > 1) & (case["pdtp_unbinned"] <= 1))


def test_reference_arrays_of_a_tree() -> None:
    """Whose structure follows the data: refitted. Leaves are pure, so values are 0 or infinite."""
    case = reference("dt_iris")
    found = pdtp(DecisionTreeClassifier(random_state=0), case["X"], case["y"], engine=InProcess())
    np.testing.assert_allclose(np.exp(found.without), case["loo_at_t"], atol=TIGHT)
    np.testing.assert_allclose(found.binned, case["pdtp"], rtol=TIGHT, atol=TIGHT)


@pytest.mark.parametrize(("name", "estimator"), [("gnb", GaussianNB()), ("bnb", BernoulliNB())])
def test_the_maximum_over_all_rows_is_another_number(name: str, estimator: Any) -> None:
    case = reference(f"{name}_iris")
    found = dtp_over(estimator, case["X"], case["y"], case["X"])
    np.testing.assert_allclose(found.binned, case["art_like_ln"], rtol=TIGHT, atol=TIGHT)
    own = pdtp(estimator, case["X"], case["y"])
    assert (found.values >= own.values - TIGHT).all()
    assert (found.binned >= own.binned).all()
    assert "a lower bound on DTP" in found.caveats[0]
    at = estimator.fit(case["X"], case["y"]).predict_log_proba(case["X"])[found.query]
    np.testing.assert_allclose(found.full, at, rtol=TIGHT, atol=TIGHT)


def test_a_toolbox_flags_nearly_everybody() -> None:
    case = reference("gnb_breast_cancer")
    own = pdtp(GaussianNB(), case["X"], case["y"])
    found = dtp_over(GaussianNB(), case["X"], case["y"], case["X"])
    np.testing.assert_allclose(found.binned, case["art_like_ln"], rtol=TIGHT, atol=TIGHT)
    assert (np.sum(found.binned > 1), np.sum(own.binned > 1)) == (502, 12)
    assert np.sum(own.values > 1) == 35  # docs/papers/long2017.md


def coded(inputs: dict[str, Any]) -> tuple[Any, Any, list[int]]:
    """A reference case's records as numbers, and how many values each column has."""
    values = inputs["attribute_values"]
    X = np.array(
        [[v.index(x) for v, x in zip(values, row, strict=True)] for row, _ in inputs["records"]]
    )
    return X, np.array([label for _, label in inputs["records"]]), [len(v) for v in values]


def numbers(expected: list[Any]) -> Any:
    """0/0 is "undefined" there, and infinite here: whoever asks gets no answer any more."""
    return np.array([np.inf if value in {"inf", "undefined"} else value for value in expected])


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize(("inputs", "expected"), cases("c10", "dtp-"))
def test_reference_cases(inputs: dict[str, Any], expected: dict[str, Any], alpha: float) -> None:
    X, y, sizes = coded(inputs)
    found = pdtp(CategoricalNB(alpha=alpha, min_categories=sizes), X, y)
    name = "nb_laplace" if alpha else "nb"
    np.testing.assert_allclose(
        found.values, numbers(expected[f"{name}_posterior_pdtp"]), atol=1e-12
    )
    binned = expected[f"{name}_pdtp_binned_0.01"]
    asked = [place for place, value in enumerate(binned) if value != "undefined"]
    np.testing.assert_allclose(
        found.binned[asked], [binned[place] for place in asked], rtol=TIGHT, atol=1e-12
    )


def test_infinite_values_are_explained() -> None:
    X, y = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), np.array([0, 0, 0, 1])
    found = pdtp(CategoricalNB(), X, y)
    assert np.isinf(found.values).tolist() == [False, False, False, True]
    assert found.binned[3] < 5.3
    assert found.caveats == (
        "1 record is infinite: the last of its class, which has probability 0 without it.",
    )
    bare = pdtp(CategoricalNB(alpha=0.0), X, y)
    assert any("no prediction there (0/0)" in text for text in bare.caveats)
    X, y = np.array([[0], [0], [1], [0], [1], [1]]), np.array([0, 0, 0, 1, 1, 1])
    assert "under only one" in pdtp(CategoricalNB(alpha=0.0), X, y).caveats[0]


def test_over_one_by_an_edge_alone() -> None:
    below, above = np.log([[0.00999, 0.99001]]), np.log([[0.01001, 0.98999]])
    values, binned = changes(above, below)
    assert values[0] == pytest.approx(np.log(0.01001 / 0.00999))
    assert binned[0] == pytest.approx(np.log(3))


def test_what_no_double_shows_does_not_count() -> None:
    assert changes(np.array([[0.0, -2507.0]]), np.array([[0.0, -2483.0]]))[0] == [0.0]
    assert changes(np.array([[0.0, -np.inf]]), np.array([[0.0, -np.inf]]))[0] == [0.0]
    assert changes(np.array([[0.0, -5.0]]), np.array([[0.0, -np.inf]]))[0] == [np.inf]


def test_records_may_be_chosen() -> None:
    X, y = load_iris(return_X_y=True)
    every = pdtp(GaussianNB(), X, y)
    some = pdtp(GaussianNB(), X, y, records=np.array([149, 3, 3]))
    np.testing.assert_array_equal(some.records, [149, 3, 3])
    np.testing.assert_array_equal(some.values, every.values[[149, 3, 3]])
    assert some.unseen is None
    assert some.of == 150
    assert "others may be higher" in some.caveats[-1]


def test_a_sample_says_what_it_leaves_open() -> None:
    X, y = load_iris(return_X_y=True)
    drawn = pdtp(GaussianNB(), X, y, records="sample:60", seed=3)
    again = pdtp(GaussianNB(), X, y, records="sample:60", seed=3)
    assert np.unique(drawn.records).size == 60
    np.testing.assert_array_equal(drawn.records, again.records)
    assert drawn.unseen == count_unseen(60, 150) == 5
    assert "60 of 150 records were drawn: with 95% confidence at most 5" in drawn.caveats[-1]
    assert pdtp(GaussianNB(), X, y, records="sample:500").records.size == 150


@pytest.mark.parametrize(("sampled", "of"), [(1, 2), (5, 40), (60, 150), (500, 10_000), (39, 40)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_limit_solves_its_defining_equation(sampled: int, of: int, confidence: float) -> None:
    limit = count_unseen(sampled, of, confidence=confidence)

    def missed(largest: int) -> float:
        return float(scipy.stats.hypergeom.pmf(0, of, largest, sampled))

    assert missed(limit + 1) <= (1 - confidence) * (1 + 1e-9)
    assert limit == 0 or missed(limit) > (1 - confidence) * (1 - 1e-9)


def test_a_sample_is_wrong_no_oftener_than_it_says(rng: np.random.Generator) -> None:
    """With ties too; and hardly less often, so that it says all it may."""
    values, sampled, samples = rng.exponential(size=400), 40, 2_000
    for law, least in ((values, 0.02), (np.floor(values), 0.0)):
        limit = count_unseen(sampled, law.size)
        wrong = sum(
            np.sum(law > law[rng.choice(law.size, sampled, replace=False)].max()) > limit
            for _ in range(samples)
        )
        assert wrong <= scipy.stats.binom.isf(FLAKE, samples, 0.05)
        assert wrong >= scipy.stats.binom.ppf(FLAKE, samples, least)
        # one fewer would be wrong too often where there are no ties
        assert scipy.stats.hypergeom.pmf(0, law.size, limit, sampled) > 0.05


def test_what_no_family_takes_is_refitted() -> None:
    X, y = load_iris(return_X_y=True)
    records = np.array([0, 70, 118])
    shares = X / X.max()
    found = pdtp(BernoulliNB(binarize=None), shares, y, records=records, engine=InProcess())
    assert "refits" in found.path
    assert "Bernoulli naive Bayes was refitted: binarize=None" in found.caveats[0]
    assert found.floor is not None


@pytest.mark.parametrize(
    ("y", "options", "words"),
    [
        ([0, 0, 0], {}, "at least two classes"),
        ([0, 1], {}, "as many rows in X"),
        ([[0], [1], [1]], {}, "ravel"),
        ([0.0, np.nan, 1.0], {}, "nan in y"),
        ([0, 1, 1], {"records": "sample:0"}, "sample:500"),
        ([0, 1, 1], {"records": "some"}, "sample:500"),
        ([0, 1, 1], {"records": np.array([3])}, r"in \[0, 3\)"),
        ([0, 1, 1], {"records": np.array([0.5])}, "row numbers"),
        ([0, 1, 1], {"preprocessing": "guess"}, "'refit' or 'fixed'"),
    ],
    ids=str,
)
def test_bad_input(y: Any, options: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        pdtp(GaussianNB(), [[0.0], [1.0], [2.0]], y, **options)


def test_a_model_without_answers() -> None:
    with pytest.raises(InvalidArgument, match="nan at 3 of 3 training records"):
        pdtp(GaussianNB(var_smoothing=0.0), [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [0, 1, 1])


def test_queries_through_refits_are_the_same() -> None:
    """What is exact and what is fitted again answer alike, at any queries."""
    X, y = load_iris(return_X_y=True)
    records = np.array([0, 106])

    class Other(GaussianNB):
        """Of no family."""

    exact = dtp_over(GaussianNB(), X, y, X[::10], records=records)
    again = dtp_over(Other(), X, y, X[::10], records=records, engine=InProcess())
    np.testing.assert_allclose(again.values, exact.values, rtol=1e-6)
    np.testing.assert_array_equal(again.query, exact.query)
    np.testing.assert_allclose(
        pdtp(GaussianNB(), X, y, records=records).without,
        refitted_logs(GaussianNB(), X, y, records),
        rtol=TIGHT,
        atol=TIGHT,
    )
