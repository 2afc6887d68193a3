"""What adversaries insert, against plain loops; what they infer, against densities."""

import itertools
import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from epsilometer.audits.dpsgd.canaries import (
    IN_WORDS,
    Adversary,
    ManyCanaries,
    TargetCanary,
    dirac_direction,
    random_direction,
)
from epsilometer.errors import InvalidArgument
from epsilometer.networks.trainer import NoCanaries
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sequential,
    Shuffle,
    WithoutReplacement,
    is_displacing,
)
from tests import printed_ratios as printed

ADVERSARIES = get_args(Adversary)
ADJACENCIES = ("zero_out", "add_remove", "replace")
AXIS = np.array([1.0, 0.0])
SIGMA, B = 0.8, 3


def canary(adversary: Any, **changed: Any) -> TargetCanary:
    plain = {"direction": AXIS, "batch_size": B, "adversary": adversary}
    return TargetCanary(**{**plain, **changed})


# What is inserted


@st.composite
def batches(draw: st.DrawFn) -> list[list[int]]:
    """Records without repetition: full, ragged, of one, empty, the target anywhere or nowhere."""
    width = draw(st.integers(1, 5))
    record = st.lists(st.integers(0, 7), unique=True, max_size=width)
    special = st.sampled_from([[], [0], [4], [0, 5][:width], [5, 0][:width], [1, 2, 3, 0][:width]])
    return draw(st.lists(record | special, min_size=1, max_size=6))


def by_hand(how: TargetCanary, batch: list[int]) -> tuple[list[bool] | None, float, bool]:
    """The table of the module, record for record."""
    without = {"zero_out": 0.0, "replace": -1.0, "add_remove": 0.0}[how.adjacency]
    amount, keep = 0.0, [True] * len(batch)
    others = [place for place, record in enumerate(batch) if record != 0]
    for place, record in enumerate(batch):
        if record == 0:
            amount += 1.0 if how.present else without
            keep[place] = False
        elif how.adversary == "batch_then_shuffle":
            amount += 1.0 if record < how.batch_size else -1.0
    if how.adversary in ("partially_informed", "worst_case") and others:  # noqa: SIM102
        if 0 not in batch or not how.displaces:
            amount -= 1.0
            keep[others[-1]] = False
    if how.adversary in ("worst_case", "batch_then_shuffle"):
        return None, amount, 0 in batch
    return keep, amount, 0 in batch


@pytest.mark.parametrize("takes_place", [True, False], ids=["in place", "beside"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("adversary", ADVERSARIES)
@settings(max_examples=30)
@given(rows=batches(), present=st.booleans())
@pytest.mark.in_turn(3)
def test_every_insertion_is_that_of_a_plain_loop(
    adversary: Any, adjacency: Any, takes_place: bool, rows: list[list[int]], present: bool
) -> None:
    how = canary(adversary, adjacency=adjacency, present=present, displaces=takes_place)
    if adjacency == "add_remove" and not present:
        rows = [[record for record in row if record != 0] for row in rows]
    width = max(1, *map(len, rows))
    filled = np.array([row + [-1] * (width - len(row)) for row in rows])
    keep, amounts, drawn = how.insert(filled)
    assert amounts.shape == drawn.shape == (len(rows), 1)
    for i, row in enumerate(rows):
        kept, amount, has = by_hand(how, row)
        assert (float(amounts[i, 0]), bool(drawn[i, 0])) == (amount, has)
        if kept is None:
            assert keep is None
        else:
            assert keep is not None
            assert keep[i].tolist() == kept + [False] * (width - len(row))


@pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("sampler", [Shuffle(), BatchThenShuffle(), Poisson(), BallsInBins()])
def test_means_are_those_of_full_batches(
    sampler: Any, adversary: Any, adjacency: Any, rng: np.random.Generator
) -> None:
    """Of slices, for the adversary who counts on them."""
    order = BatchThenShuffle() if adversary == "batch_then_shuffle" else Shuffle()
    how = canary(adversary, adjacency=adjacency, displaces=is_displacing(sampler))
    rows = np.array(list(order.batches(12, B, rng=rng)))
    for present, mean in zip((True, False), how.means, strict=False):
        found = replace(how, present=present).insert(rows)
        for amount, has in zip(found.amounts[:, 0], found.drawn[:, 0], strict=True):
            assert float(amount) == (mean if has else how.means[2])


def test_without_the_record_no_batch_is_its_own(rng: np.random.Generator) -> None:
    for adversary in ("target_canary", "partially_informed", "worst_case"):
        how = canary(adversary, adjacency="add_remove", present=False)
        rows = 1 + np.array(list(Shuffle().batches(12, B, rng=rng)))
        assert set(how.insert(rows).amounts.flatten().tolist()) == {how.means[1]} == {how.means[2]}


def test_what_is_inserted_tells_nothing_of_the_target_where_it_comes_beside_others() -> None:
    """What differs between a batch with it and the same without is what the target itself adds."""
    rows = np.array([[0, 4, 5], [0, 4, -1], [0, -1, -1]])
    bare = np.array([[4, 5, -1], [4, -1, -1], [-1, -1, -1]])
    for adversary in ADVERSARIES:
        how = canary(adversary, displaces=False)
        with_it, without = how.insert(rows), how.insert(bare)
        assert (with_it.amounts - without.amounts).flatten().tolist() == [1.0] * 3


def test_who_surely_takes_the_place_of_another() -> None:
    fixed = [Shuffle(), Sequential(), PartialShuffle(4), BatchThenShuffle(), WithoutReplacement()]
    assert all(map(is_displacing, fixed))
    assert not any(map(is_displacing, [Poisson(), BallsInBins(), object()]))


@settings(max_examples=50)
@given(rows=batches(), data=st.data())
def test_canaries_beside_the_records_are_in_by_their_own_coins(
    rows: list[list[int]], data: st.DataObject
) -> None:
    first, count, width = 5, 3, max(1, *map(len, rows))  # records 5, 6 and 7 are canaries
    coins = st.lists(st.booleans(), min_size=count, max_size=count)
    included = np.array([data.draw(coins) for _ in rows])
    planted = ManyCanaries(directions=np.eye(count), included=included, first=first)
    filled = np.array([row + [-1] * (width - len(row)) for row in rows])
    keep, amounts, drawn = planted.insert(filled)
    assert planted.records == count
    assert keep is not None
    for i, row in enumerate(rows):
        padded = row + [-1] * (width - len(row))
        assert keep[i].tolist() == [0 <= record < first for record in padded]
        there = [first + k in row for k in range(count)]
        assert drawn[i].tolist() == there
        expected = [float(a and b) for a, b in zip(there, included[i], strict=True)]
        assert amounts[i].tolist() == expected


def test_training_without_canaries_keeps_all_or_all_but_the_first() -> None:
    rows = np.array([[2, 0, 1], [3, -1, -1]])
    assert NoCanaries().insert(rows).keep.tolist() == [[True, True, True], [True, False, False]]
    zeroed = NoCanaries(zeroed=True).insert(rows)
    assert zeroed.keep.tolist() == [[True, False, True], [True, False, False]]
    assert zeroed.amounts.shape == zeroed.drawn.shape == (2, 0)


# What is inferred


@pytest.fixture
def seen(rng: np.random.Generator) -> np.ndarray:
    """Runs, epochs, steps."""
    return rng.normal(0, 1.5, (5, 2, 4))


def scored(how: TargetCanary, seen: np.ndarray, sampler: Any, **more: Any) -> np.ndarray:
    return how.log_ratio(seen, sampler=sampler, noise_multiplier=SIGMA, **more)


def test_ratios_are_those_of_the_printed_formulas(seen: np.ndarray) -> None:
    cases = [
        ("target_canary", Shuffle(), printed.target_canary(seen, sigma=SIGMA)),
        ("target_canary", BallsInBins(), printed.balls_in_bins(seen, sigma=SIGMA)),
        ("partially_informed", Shuffle(), printed.partially_informed(seen, sigma=SIGMA)),
        ("worst_case", Shuffle(), printed.worst_case(seen, sigma=SIGMA, batch_size=1)),
        (
            "worst_case",
            WithoutReplacement(),
            printed.without_replacement(seen, sigma=SIGMA, batch_size=1),
        ),
        (
            "batch_then_shuffle",
            BatchThenShuffle(),
            printed.batch_then_shuffle(seen, sigma=SIGMA, batch_size=B),
        ),
        ("target_canary", Poisson(), printed.poisson(seen, sigma=SIGMA)),
        ("target_canary", Poisson(rate=0.3), printed.poisson(seen, sigma=SIGMA, rate=0.3)),
        ("target_canary", Poisson(rate=1.0), printed.poisson(seen, sigma=SIGMA, rate=1.0)),
    ]
    for adversary, sampler, expected in cases:
        how = canary(adversary, displaces=is_displacing(sampler))
        np.testing.assert_allclose(scored(how, seen, sampler), expected, rtol=1e-12, atol=1e-12)


def test_the_rate_is_the_samplers_then_the_callers_then_one_in_all_steps(seen: np.ndarray) -> None:
    how = canary("target_canary", displaces=False)
    poisson = {q: printed.poisson(seen, sigma=SIGMA, rate=q) for q in (0.1, 0.25, 0.4)}
    for sampler, rate, expected in [
        (Poisson(rate=0.4), 0.1, 0.4),
        (Poisson(), 0.1, 0.1),
        (Poisson(steps=4), None, 0.25),
    ]:
        np.testing.assert_array_equal(scored(how, seen, sampler, rate=rate), poisson[expected])
    drawn = canary("target_canary")
    np.testing.assert_array_equal(scored(drawn, seen, WithoutReplacement(), rate=0.1), poisson[0.1])


def by_density(how: TargetCanary, seen: np.ndarray, rate: float | None) -> np.ndarray:
    """Sums over the batches that may have the target, of densities of all that was seen."""
    present, absent, other = how.means
    logs = []
    for mean in (present, absent):
        of_epochs = []
        for epoch in itertools.product(range(seen.shape[0]), range(seen.shape[1])):
            x = seen[epoch]
            plain = scipy.stats.norm.logpdf(x, other, SIGMA)
            hit = scipy.stats.norm.logpdf(x, mean, SIGMA)
            ways = []
            for chosen in itertools.product([False, True], repeat=x.size):
                if rate is None:
                    weight = math.log(1 / x.size) if sum(chosen) == 1 else -math.inf
                else:
                    k = sum(chosen)
                    weight = k * math.log(rate) + (x.size - k) * math.log1p(-rate)
                ways.append(weight + np.where(chosen, hit, plain).sum())
            of_epochs.append(scipy.special.logsumexp(ways))
        logs.append(np.reshape(of_epochs, seen.shape[:2]).sum(1))
    return logs[0] - logs[1]


@pytest.mark.parametrize("takes_place", [True, False], ids=["in place", "beside"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_ratios_are_those_of_densities_for_every_adjacency(
    adversary: Any, adjacency: Any, takes_place: bool, seen: np.ndarray
) -> None:
    how = canary(adversary, adjacency=adjacency, displaces=takes_place)
    np.testing.assert_allclose(
        scored(how, seen, Shuffle()), by_density(how, seen, None), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        scored(how, seen, Poisson(rate=0.3)), by_density(how, seen, 0.3), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("adversary", ["partially_informed", "worst_case"])
def test_a_step_shows_no_more_than_the_accountant_of_poisson_sampling_allows(
    adversary: Any,
) -> None:
    """δ at every ε of what she sees, and of N(0) against its mixture with N(1). A −1 in other
    batches alone would show more, by far: a right accountant would be refuted."""
    x, rate = np.linspace(-12, 12, 20_001), 0.1

    def density(mean: float) -> np.ndarray:
        return scipy.stats.norm.pdf(x, mean, 1.0) * (x[1] - x[0])

    def delta(epsilon: float, p: np.ndarray, q: np.ndarray) -> float:
        return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())

    allowed = (1 - rate) * density(0) + rate * density(1), density(0)
    for takes_place in (False, True):
        present, absent, other = canary(adversary, displaces=takes_place).means
        seen = [(1 - rate) * density(other) + rate * density(mean) for mean in (present, absent)]
        for epsilon in (0.1, 0.5, 1.0, 2.0):
            most = delta(epsilon, *allowed)
            if takes_place:
                assert delta(epsilon, *seen) > 1.2 * most
            else:
                assert delta(epsilon, *seen) == pytest.approx(most, rel=1e-4)  # a grid


def test_only_the_batches_count_that_may_have_the_target(seen: np.ndarray) -> None:
    for how in (canary("partially_informed"), canary("worst_case")):
        first = scored(how, seen[..., :1], Shuffle())
        np.testing.assert_array_equal(scored(how, seen, Sequential()), first)
        for buffer, batches_ in [(1, 1), (3, 1), (4, 2), (9, 3), (100, 4)]:
            expected = scored(how, seen[..., :batches_], Shuffle())
            found = scored(how, seen, PartialShuffle(buffer))
            np.testing.assert_array_equal(found, expected)
        whole = scored(how, seen, Shuffle())
        np.testing.assert_array_equal(scored(how, seen, PartialShuffle(4, sliding=True)), whole)


def test_without_noise_scores_still_tell_the_target() -> None:
    how = canary("target_canary")
    plain = {"sampler": Shuffle(), "noise_multiplier": 0.0}
    inside, outside = (how.log_ratio(np.array([[[x, 0.0]]]), **plain)[0] for x in (1.0, 0.0))
    assert np.isfinite([inside, outside]).all()
    assert inside > 0 > outside


# Directions, and bad input


def test_directions_are_unit_vectors_of_their_kind(rng: np.random.Generator) -> None:
    dense, dirac = (make(50, rng=rng) for make in (random_direction, dirac_direction))
    assert np.linalg.norm(dense) == pytest.approx(1)
    assert np.count_nonzero(dense) == 50
    assert sorted(dirac)[-2:] == [0.0, 1.0]
    places = {int(dirac_direction(3, rng=rng).argmax()) for _ in range(100)}
    assert places == {0, 1, 2}
    many = np.stack([random_direction(4, rng=rng) for _ in range(4000)])
    np.testing.assert_allclose(many.T @ many / 4000, np.eye(4) / 4, atol=0.05)  # twelve errors
    assert set(IN_WORDS) == set(ADVERSARIES)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"adversary": "omniscient"}, "Expected adversary to be one of target_canary"),
        ({"adjacency": "unstated"}, "it defines training without the target"),
        ({"adjacency": "swap"}, "Expected adjacency to be one of"),
        ({"batch_size": 0}, "batch_size"),
        ({"direction": np.array([1.0, 1.0])}, "Expected a unit vector"),
        ({"direction": np.eye(2)}, "Expected a unit vector"),
        ({"direction": np.array([np.nan, 1.0])}, "Expected a unit vector"),
    ],
)
def test_a_canary_that_is_none_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        canary(**{"adversary": "worst_case", **wrong})


@pytest.mark.parametrize("make", [random_direction, dirac_direction])
def test_a_direction_needs_a_parameter(make: Any, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match="size"):
        make(0, rng=rng)
