"""A replay finds what one record changes, and compares only what shares its randomness."""

from typing import Any

import numpy as np
import pytest

from epsilometer.conformance.batches import (
    count_records,
    relabel_record,
    scale_record,
    take_records,
)
from epsilometer.conformance.neighbours import REMOVED, REPLACED
from epsilometer.conformance.replay import (
    copy_step,
    find_lattice,
    measure_distance,
    read_release,
    replay_step,
    run_step,
)
from epsilometer.core.findings import Check
from epsilometer.errors import InvalidArgument

SEED = np.random.SeedSequence(3)


def a_batch() -> Any:
    return np.random.default_rng(0).normal(size=(10, 20))


def clip(batch: Any) -> Any:
    return batch / np.maximum(1, np.linalg.norm(batch, axis=1, keepdims=True))


def right(batch: Any, rng: np.random.Generator) -> Any:
    return clip(batch).sum(axis=0) + rng.normal(size=20)


def replay(step: Any, batch: Any = None, clip_norm: float = 1.0) -> dict[str, Check]:
    own = a_batch() if batch is None else batch
    checks = replay_step(step, own, clip_norm=clip_norm, seed=np.random.SeedSequence(3))
    return {check.name: check for check in checks}


def test_a_right_step_reaches_its_limits_and_no_more() -> None:
    found = replay(right)
    assert [check.outcome for check in found.values()] == ["conforms", "conforms"]
    assert found[REPLACED].value == pytest.approx(2.0)  # a record and its opposite
    assert found[REMOVED].value == pytest.approx(1.0)


@pytest.mark.parametrize("factor", [1.01, 2.0, 100.0])
def test_records_clipped_to_too_much_are_found(factor: float) -> None:
    found = replay(lambda b, rng: factor * clip(b).sum(axis=0) + rng.normal(size=20))
    assert [check.outcome for check in found.values()] == ["violated", "violated"]
    assert found[REPLACED].value == pytest.approx(2 * factor)
    assert found[REMOVED].value == pytest.approx(factor)


def test_division_by_the_number_of_records_shows_in_removal_alone() -> None:
    found = replay(lambda b, rng: 10 * clip(b).sum(axis=0) / len(b) + rng.normal(size=20))
    assert found[REPLACED].outcome == "conforms"
    assert found[REMOVED].outcome == "violated"


def test_dropout_makes_removal_untestable_and_not_wrong() -> None:
    def drop(batch: Any, rng: np.random.Generator) -> Any:
        kept = batch * (rng.random(batch.shape) < 0.5)
        return clip(kept).sum(axis=0) + rng.normal(size=20)

    found = replay(drop)
    assert found[REPLACED].outcome == "conforms"
    assert found[REMOVED].outcome == "not tested"
    assert "random stream" in found[REMOVED].seen


def test_an_error_on_a_neighbour_is_told_and_not_hidden() -> None:
    def fragile(batch: Any, rng: np.random.Generator) -> Any:
        if len(batch) != 10:
            raise ValueError("ten records, please")
        return right(batch, rng)

    found = replay(fragile)
    assert found[REPLACED].outcome == "conforms"
    assert found[REMOVED].outcome == "not tested"
    assert found[REMOVED].seen == "the step raised ValueError"  # what it said may hold a record


def test_what_is_no_number_does_not_conform() -> None:
    def overflow(batch: Any, rng: np.random.Generator) -> Any:
        return clip(np.exp(batch)).sum(axis=0) + rng.normal(size=20)

    assert replay(overflow)[REPLACED].outcome == "violated"


@pytest.mark.parametrize("decimals", [2, 3])
def test_rounding_after_noise_is_allowed_for(decimals: int) -> None:
    found = replay(lambda b, rng: np.round(right(b, rng), decimals))
    assert [check.outcome for check in found.values()] == ["conforms", "conforms"]
    loud = replay(lambda b, rng: np.round(2 * right(b, rng), decimals))
    assert [check.outcome for check in loud.values()] == ["violated", "violated"]


def test_rounding_beyond_the_limit_cannot_be_tested() -> None:
    found = replay(lambda b, rng: np.round(right(b, rng)))
    assert [check.outcome for check in found.values()] == ["not tested", "not tested"]
    assert "rounded" in found[REPLACED].seen


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_lower_precision_is_allowed_for(kind: Any) -> None:
    found = replay(lambda b, rng: right(b, rng).astype(kind))
    assert [check.outcome for check in found.values()] == ["conforms", "conforms"]


def test_one_record_can_be_replaced_but_not_removed() -> None:
    found = replay(right, a_batch()[:1])
    assert found[REPLACED].outcome == "conforms"
    assert "one record" in found[REMOVED].seen


def norms(gradients: Any) -> Any:
    return np.linalg.norm(gradients, axis=1, keepdims=True)


TOO_LOUD: dict[str, Any] = {  # clipping rules, and the C for which they let more than C through
    "squared norm, C = 0.25": (0.25, lambda g, c: g * np.minimum(1, c / norms(g) ** 2)),
    "squared norm, C = 0.5": (0.5, lambda g, c: g * np.minimum(1, c / norms(g) ** 2)),
    "squared norm, C = 0.9": (0.9, lambda g, c: g * np.minimum(1, c / norms(g) ** 2)),
    "squared norm, not below 1": (4.0, lambda g, c: g * c / norms(g) ** 2),
    "power 0.9": (2.0, lambda g, c: g * c / norms(g) ** 0.9),
    "power 1.1": (0.5, lambda g, c: g * np.minimum(1, c / norms(g) ** 1.1)),
    "from 1.05 C on": (1.0, lambda g, c: np.where(norms(g) > 1.05 * c, g * c / norms(g), g)),
    "from 1.02 C on": (4.0, lambda g, c: np.where(norms(g) > 1.02 * c, g * c / norms(g), g)),
    "zero from 5 C on": (0.1, lambda g, c: np.where(norms(g) > 5 * c, 0 * g, g)),
    "√C": (0.25, lambda g, c: g * np.minimum(1, np.sqrt(c) / norms(g))),
    "largest coordinate": (
        1.0,
        lambda g, c: g * np.minimum(1, c / np.abs(g).max(axis=1, keepdims=True)),
    ),
    "logarithm": (1.0, lambda g, c: g * c * np.log1p(norms(g)) / norms(g)),
}
QUIET: dict[str, Any] = {  # other rules that let no more than C through
    "plain": (0.25, lambda g, c: g * np.minimum(1, c / norms(g))),
    "automatic": (4.0, lambda g, c: g * c / (norms(g) + 0.01)),
    "squared norms": (0.5, lambda g, c: g * np.minimum(1, c**2 / norms(g) ** 2)),
    "squared norm, C = 2": (2.0, lambda g, c: g * np.minimum(1, c / norms(g) ** 2)),
    "squared norm, C = 4": (4.0, lambda g, c: g * np.minimum(1, c / norms(g) ** 2)),
    "power 1.1, C = 2": (2.0, lambda g, c: g * np.minimum(1, c / norms(g) ** 1.1)),
    "sum of absolute values": (
        1.0,
        lambda g, c: g * np.minimum(1, c / np.abs(g).sum(axis=1, keepdims=True)),
    ),
    "smooth": (0.5, lambda g, c: g * c * np.tanh(norms(g) / c) / norms(g)),
    "zero from C on": (1.0, lambda g, c: np.where(norms(g) > c, 0 * g, g)),
}


def outcomes_of_rule(rule: Any, clip_norm: float, size: float) -> set[str]:
    def step(batch: Any, rng: np.random.Generator) -> Any:
        return rule(batch, clip_norm).sum(axis=0) + clip_norm * rng.normal(size=20)

    found = replay(step, size * a_batch(), clip_norm)
    return {check.outcome for check in found.values()}


@pytest.mark.parametrize("name", TOO_LOUD)
@pytest.mark.parametrize("size", [0.03, 1.0, 7.0])
def test_a_rule_that_lets_more_through_at_some_norm_is_found(name: str, size: float) -> None:
    clip_norm, rule = TOO_LOUD[name]
    assert "violated" in outcomes_of_rule(rule, clip_norm, size)


@pytest.mark.parametrize("name", QUIET)
@pytest.mark.parametrize("size", [0.03, 1.0, 7.0])
def test_a_rule_that_keeps_to_the_norm_is_spared(name: str, size: float) -> None:
    clip_norm, rule = QUIET[name]
    assert outcomes_of_rule(rule, clip_norm, size) == {"conforms"}


def test_norms_are_searched_where_removal_cannot_be_compared() -> None:
    def drop(batch: Any, rng: np.random.Generator) -> Any:
        kept = batch * (rng.random(batch.shape) < 0.5)
        clipped = kept * np.minimum(1, 0.25 / norms(kept) ** 2)
        return clipped.sum(axis=0) + rng.normal(size=20)

    found = replay(drop, clip_norm=0.25)
    assert found[REPLACED].outcome == "violated"
    assert found[REMOVED].outcome == "not tested"


def test_a_search_takes_few_steps() -> None:
    calls = 0

    def counted(batch: Any, rng: np.random.Generator) -> Any:
        nonlocal calls
        calls += 1
        return right(batch, rng)

    replay(counted)
    assert calls <= 200  # 8 records, of which 3 are searched


def test_another_label_is_tried() -> None:
    def weigh_class(batch: Any, rng: np.random.Generator) -> Any:
        x, labels = batch
        return (clip(x) * np.where(labels == 3, 9.0, 1.0)[:, None]).sum(axis=0)

    labels = np.array([3] + 9 * [0])
    found = replay(weigh_class, (a_batch(), labels))
    assert found[REPLACED].outcome == found[REMOVED].outcome == "violated"
    records = [(row, int(label)) for row, label in zip(a_batch(), labels, strict=True)]
    swapped = relabel_record(records, 1, 0)
    assert swapped[1][1] == 3
    np.testing.assert_array_equal(swapped[1][0], records[1][0])
    assert relabel_record([{"x": 0.5, "y": 1}, {"x": 0.1, "y": 2}], 0, 1)[0] == {"x": 0.5, "y": 2}


def test_what_cannot_be_enlarged_and_is_never_clipped_is_not_tested() -> None:
    tokens = np.random.default_rng(0).integers(0, 50, size=(8, 20))

    def no_clipping(batch: Any, rng: np.random.Generator) -> Any:
        return (batch / 1e4).sum(axis=0) + rng.normal(size=20)

    found = replay(no_clipping, tokens)
    assert {check.outcome for check in found.values()} == {"not tested"}
    assert "enlarged" in found[REMOVED].seen
    loud = replay(lambda b, rng: no_clipping(1000 * b, rng), tokens)
    assert {check.outcome for check in loud.values()} == {"violated"}
    spared = replay(lambda b, rng: clip(b).sum(axis=0) + rng.normal(size=20), tokens)
    assert {check.outcome for check in spared.values()} == {"conforms"}


def test_batches_are_tuples_arrays_or_lists() -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([1, 2, 3])
    taken = take_records((x, y), [2, 2])
    assert taken[1].tolist() == [3, 3]
    scaled = scale_record((x, y), 1, 10.0)
    assert scaled[0].tolist() == [[0, 1], [20, 30], [4, 5]]
    assert scaled[1].tolist() == [1, 2, 3]  # labels stay
    records = [{"x": np.ones(2), "label": 1, "weight": 0.5}, {"x": np.ones(2), "label": 0}]
    assert scale_record(records, 0, 2.0)[0]["x"].tolist() == [2, 2]
    assert scale_record(records, 0, 2.0)[0]["weight"] == 1.0
    assert records[0]["x"].tolist() == [1, 1]
    assert count_records(records) == count_records(take_records(records, [0, 1])) == 2
    nested = [(np.ones(2), [1.0, 2])]
    assert scale_record(nested, 0, 3.0)[0][1] == [3.0, 2]
    with pytest.raises(InvalidArgument, match="as many records"):
        count_records((x, y[:2]))


def test_lists_of_records_are_replayed_too() -> None:
    found = replay(
        lambda b, rng: (clip(np.array(b)).sum(axis=0) if len(b) else 0) + rng.normal(size=20),
        list(a_batch()),
    )
    assert found[REPLACED].value == pytest.approx(2.0)


def test_a_step_may_not_change_the_batch_of_others() -> None:
    batch = a_batch()
    before = batch.copy()

    def spoil(batch: Any, rng: np.random.Generator) -> Any:
        batch *= 0
        return right(batch, rng)

    run_step(spoil, batch, SEED)
    np.testing.assert_array_equal(batch, before)


def test_objects_are_copied_with_their_state() -> None:
    class Counting:
        calls = 0

        def __call__(self, batch: Any, rng: np.random.Generator) -> Any:
            self.calls += 1
            return batch.sum(axis=0)

        def __deepcopy__(self, memo: Any) -> Any:
            return type(self)()

    counting = Counting()
    run_step(counting, a_batch(), SEED)
    assert counting.calls == 0
    assert copy_step(right) is right


@pytest.mark.parametrize(
    ("values", "spacing"),
    [
        (np.random.default_rng(0).normal(size=50), 0.0),
        (np.round(np.random.default_rng(0).normal(size=50)), 1.0),
        (np.round(np.random.default_rng(0).normal(size=50) * 4) / 4, 0.25),
        (np.round(np.random.default_rng(0).normal(size=50) * 4) / 4 + np.sqrt(np.arange(50)), 0.0),
        (np.ones(50), 0.0),
        (np.array([1.0, 2.0, 3.0]), 0.0),  # too few to tell
        (np.array([1.0, np.nan] * 9), 0.0),
    ],
)
def test_lattices_are_recognised(values: Any, spacing: float) -> None:
    assert find_lattice([("sum", values)]) == pytest.approx(spacing)


def test_what_is_released_is_read_and_compared() -> None:
    assert [name for name, _ in read_release({"a": [1.0], "b": 2.0})] == ["a", "b"]
    assert measure_distance(read_release([1.0, 5.0]), read_release([4.0, 1.0])) == 5
    assert measure_distance(read_release([1.0]), read_release([[1.0, 2.0]])) == np.inf
    assert measure_distance(read_release([1.0]), read_release([np.nan])) == np.inf
    for wrong in ([], np.zeros(0), [np.zeros(0)]):
        with pytest.raises(InvalidArgument, match="noisy sum"):
            read_release(wrong)
