"""DTP by enumeration, against its definition."""
# ruff: noqa: N806 - X, as in scikit-learn

from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB

from epsilometer.audits.classifier.leave_one_out.pdtp import dtp_exact, enumerate_domain, pdtp
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.leave_one_out.test_pdtp import coded, numbers
from tests.conftest import cases


@pytest.mark.parametrize(("inputs", "expected"), cases("c10", "dtp-"))
def test_reference_cases(inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    X, y, sizes = coded(inputs)
    found = dtp_exact(CategoricalNB(min_categories=sizes), X, y)
    np.testing.assert_allclose(
        found.values, numbers(expected["nb_laplace_posterior_dtp"]), atol=1e-12
    )
    bare = dtp_exact(CategoricalNB(alpha=0.0, min_categories=sizes), X, y)
    # where the model without a record has no answer the reference does not look; we say infinite
    asked = np.array([value != "undefined" for value in expected["nb_posterior_pdtp"]])
    np.testing.assert_allclose(
        bare.values[asked], numbers(expected["nb_posterior_dtp"])[asked], atol=1e-12
    )
    assert np.isinf(bare.values[~asked]).all()


def test_is_the_maximum_over_all_there_is(rng: np.random.Generator) -> None:
    """By refits of scikit-learn, asked about every combination."""
    X, y = rng.integers(0, [3, 2, 4], size=(30, 3)), np.arange(30) % 3
    sizes = [3, 2, 4]
    grid = np.array([[a, b, c] for a in range(3) for b in range(2) for c in range(4)])
    found = dtp_exact(CategoricalNB(min_categories=sizes), X, y)
    full = CategoricalNB(min_categories=sizes).fit(X, y).predict_log_proba(grid)
    for record in range(0, 30, 7):
        kept = np.arange(30) != record
        other = CategoricalNB(min_categories=sizes).fit(X[kept], y[kept])
        change = np.abs(full - other.predict_log_proba(grid)).max(axis=1)
        assert found.values[record] == pytest.approx(change.max(), rel=1e-9)
        assert change[found.query[record]] == pytest.approx(change.max(), rel=1e-9)
    assert (found.values >= pdtp(CategoricalNB(min_categories=sizes), X, y).values - 1e-12).all()
    assert not any("lower bound" in text for text in found.caveats)


@pytest.mark.parametrize("binarize", [None, 0.5])
def test_bernoulli_is_categorical_with_two_values(
    binarize: float | None, rng: np.random.Generator
) -> None:
    X, y = rng.integers(0, 2, size=(25, 4)), np.arange(25) % 2
    bits = dtp_exact(BernoulliNB(binarize=binarize), X, y)
    categories = dtp_exact(CategoricalNB(min_categories=2), X, y)
    np.testing.assert_allclose(bits.values, categories.values, rtol=1e-9)


def test_any_family_is_asked_about_a_domain_that_is_given() -> None:
    X, y = [[0.0], [1.0], [2.0], [0.5], [3.0]], [0, 0, 1, 1, 1]
    narrow = dtp_exact(GaussianNB(), X, y, domain=[[0.0, 1.0, 2.0]])
    wide = dtp_exact(GaussianNB(), X, y, domain=[[0.0, 1.0, 2.0, 9.0]])
    assert (wide.values >= narrow.values).all()


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ([[0, 1]], "values of 2 columns, got 1"),
        ([[0, 1], []], "combinations of values, got 0"),
        ([range(2000), range(2000)], "4,000,000. dtp_over"),
    ],
)
def test_domains_that_cannot_be_enumerate_domain(domain: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        enumerate_domain(domain, 2)


def test_a_domain_that_nobody_knows() -> None:
    with pytest.raises(InvalidArgument, match="domain="):
        dtp_exact(GaussianNB(), [[0.0], [1.0], [2.0]], [0, 1, 1])
