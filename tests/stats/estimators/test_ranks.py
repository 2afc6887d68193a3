import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from epsilometer.stats.estimators import ranks
from epsilometer.stats.estimators.counting import DP_FRONTIER
from epsilometer.stats.thresholds import Ranks


def _side(sizes: tuple[int, int], *looks: tuple[int, int]) -> Ranks:
    """Looks (rank, others beyond) of one sample against the other; each may spend everything."""
    return Ranks(
        thresholds=np.arange(len(looks)) + sizes[0],
        ranks=np.array([rank for rank, _ in looks], int),
        n_ranked=sizes[0],
        beyond=np.array([beyond for _, beyond in looks], int),
        n_other=sizes[1],
        share=np.ones(len(looks)),
    )


@pytest.mark.parametrize(
    ("n_out", "n_in", "rank", "caught"), [(80, 60, 4, 9), (4000, 15, 900, 11), (9, 3000, 1, 1800)]
)
def test_ranks_are_judged_as_by_playing_the_null(
    n_out: int, n_in: int, rank: int, caught: int, rng: np.random.Generator
) -> None:
    """The p-value of a look against the share of simulated ones that catch as many."""
    epsilon, delta = 0.7, 0.01
    fpr = rng.beta(rank, n_out - rank + 1, 10**6)
    plays = rng.binomial(n_in, np.minimum(np.exp(epsilon) * fpr + delta, 1)) >= caught
    share = plays.mean()
    sides = _side((n_out, n_in), (rank, caught)), _side((n_in, n_out))
    slack = 6 * np.sqrt(share * (1 - share) / 10**6)
    for alpha, refuted in ((share + slack, True), (share - slack, False)):
        found = ranks.best_rank(sides, DP_FRONTIER, delta=delta, alpha=alpha)
        assert (found.merit > epsilon) == refuted


@pytest.mark.parametrize(
    ("f", "b"),
    [
        ((4, 77), (9, 52)),
        ((900, 3101), (11, 5)),
        ((1, 9), (2, 1)),
        ((1, 5000), (1, 2)),  # a kink where the rule must be refined
        ((1, 5000), (2, 1)),
    ],
)
@pytest.mark.parametrize("merit", [0.0, 0.7, 3.0])
def test_p_values_at_ranks_are_integrals(f: tuple, b: tuple, merit: float) -> None:
    """Pr(B ≤ g(F)) by SciPy's quadrature in the share of F; ours errs upwards by 0.4 % at most."""
    delta, level = 0.01, 1e-6

    def inner(u: float) -> float:
        fpr = scipy.stats.beta.ppf(u, *f)
        return float(scipy.stats.beta.cdf(min(np.exp(merit) * fpr + delta, 1.0), *b))

    truth, _ = scipy.integrate.quad(inner, 0, 1, limit=200, points=[1e-6, 1e-3, 0.999])
    side = _side((f[0] + f[1] - 1, b[0] + b[1] - 1), (f[0], b[0]))
    look = ranks._Look(side, 0, level)
    found = np.exp(look.excess(DP_FRONTIER, merit, delta)) * level
    assert truth * (1 - 1e-7) <= found <= truth * (1 + 4e-3) + 1e-3 * level


def test_who_caught_nobody_hopes_for_nothing() -> None:
    side = _side((5000, 60), *((1, caught) for caught in (0, 1, 30, 60)))
    hope = ranks._hope(side, DP_FRONTIER, delta=1e-5, alpha=0.05)
    looks = [ranks._Look(side, at, 0.05) for at in range(4)]
    assert hope[0] == 0.0
    assert np.all(np.diff(hope) > 0)
    for look, merit in zip(looks[1:], hope[1:], strict=True):
        assert look.excess(DP_FRONTIER, float(merit), 1e-5) > 0  # not refuted there
        median = scipy.stats.beta.median(*look.b)
        tail = scipy.stats.beta.sf((median - 1e-5) * np.exp(-merit), *look.f)
        assert tail / 2 == pytest.approx(look.level, rel=0.02)


@pytest.mark.parametrize("winner", [0, 1, 2, 3])
def test_the_best_look_is_told_with_its_side(winner: int) -> None:
    """Three looks at ranks outside, one inside; the winner has caught far more than the others."""
    caught = np.where(np.arange(4) == winner, 80, 10).tolist()
    outside, inside = (400, 100), (100, 400)
    sides = (
        _side(outside, (1, caught[0]), (2, caught[1]), (3, caught[2])),
        _side(inside, (1, 4 * caught[3])),
    )
    found = ranks.best_rank(sides, DP_FRONTIER, delta=1e-5, alpha=0.05)
    rank, row = (1, 2, 3, 1)[winner], int(winner == 3)
    assert (found.row, found.threshold) == (row, float([400, 401, 402, 100][winner]))
    if row == 0:
        names = "rank outside", "scores outside", "inside beyond", "scores inside"
        counts = (rank, 400, 80, 100)
    else:
        names = "rank inside", "scores inside", "outside beyond", "scores outside"
        counts = (rank, 100, 320, 400)
    assert found.basis == (*zip(names, counts, strict=True), ("level", 0.05))
    rank, ranked, beyond, other = counts
    look = ranks._Look(_side((ranked, other), (rank, beyond)), 0, 0.05)
    assert look.excess(DP_FRONTIER, found.merit, 1e-5) <= 0 < found.merit  # it is refuted itself,
    assert look.excess(DP_FRONTIER, found.merit * (1 + 1e-8), 1e-5) > 0  # and little more is


def test_where_nothing_is_refuted_the_first_look_is_told() -> None:
    sides = _side((50, 50), (1, 1), (4, 3)), _side((50, 50), (1, 1))
    found = ranks.best_rank(sides, DP_FRONTIER, delta=1e-5, alpha=0.05)
    assert (found.merit, found.row, found.threshold) == (0.0, 0, 50.0)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 40), (70, 2)])
def test_the_sharper_law_is_told_by_its_relative_variance(a: int, b: int) -> None:
    law = scipy.stats.beta(a, b)
    assert ranks._relative_variance(a, b) == pytest.approx(law.var() / law.mean() ** 2)
