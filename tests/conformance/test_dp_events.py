"""Events of dp_accounting: entries come to the ε of the tree, and nothing is left out."""

import dp_accounting
import pytest

from epsilometer.conformance.dp_events import read_events, read_truncation
from epsilometer.errors import InvalidArgument

GAUSS = dp_accounting.GaussianDpEvent(1.1)
STEP = dp_accounting.PoissonSampledDpEvent(0.02, GAUSS)
CUT = dp_accounting.TruncatedSubsampledGaussianDpEvent(100, 0.1, 15, 1.1)
TREES = {
    "one step": (STEP, [(1.1, 0.02, 1)]),
    "a run": (dp_accounting.SelfComposedDpEvent(STEP, 500), [(1.1, 0.02, 500)]),
    "runs after each other": (
        dp_accounting.ComposedDpEvent(
            [dp_accounting.SelfComposedDpEvent(STEP, 20), STEP, dp_accounting.NoOpDpEvent(), GAUSS]
        ),
        [(1.1, 0.02, 21), (1.1, 1.0, 1)],
    ),
    "a composition of compositions": (
        dp_accounting.SelfComposedDpEvent(dp_accounting.SelfComposedDpEvent(STEP, 7), 3),
        [(1.1, 0.02, 21)],
    ),
}


def epsilon(event: dp_accounting.DpEvent) -> float:
    accountant = dp_accounting.rdp.RdpAccountant().compose(event)
    return float(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize("name", TREES)
def test_entries_come_to_the_epsilon_of_the_tree(name: str) -> None:
    tree, expected = TREES[name]
    found = read_events(tree)
    assert found == expected
    composed = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), n
            )
            for noise, rate, n in found
        ]
    )
    assert epsilon(composed) == pytest.approx(epsilon(tree), rel=1e-9)


def test_the_ledger_of_an_accountant_is_read() -> None:
    accountant = dp_accounting.rdp.RdpAccountant().compose(STEP, 30)
    assert read_events(accountant) == [(1.1, 0.02, 30)]


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.SelfComposedDpEvent(dp_accounting.NonPrivateDpEvent(), 2),
        dp_accounting.ComposedDpEvent([STEP, dp_accounting.UnsupportedDpEvent()]),
        dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GAUSS),
        dp_accounting.SelfComposedDpEvent(CUT, 2),
        "GaussianDpEvent(1.0)",
        None,
    ],
)
def test_what_is_not_understood_is_refused(event: object) -> None:
    with pytest.raises(InvalidArgument):
        read_events(event)


def test_batches_that_are_cut_off_are_read_where_they_are_asked_for() -> None:
    tree = dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([CUT, CUT]), 3)
    assert read_truncation(tree) == (100, 15)
    assert read_events(tree, truncated=True) == [(1.1, 0.1, 6)]
    assert read_truncation(dp_accounting.SelfComposedDpEvent(STEP, 3)) is None
    with pytest.raises(InvalidArgument, match="all cut off at the same"):
        read_truncation(dp_accounting.ComposedDpEvent([tree, STEP]))
