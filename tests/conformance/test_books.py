"""Books: what is missing on them is found exactly, and what is too much is a remark."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from epsilometer.conformance.books import EARLIER, NOISE, RATE, STEPS, Booked, Books, skip_steps
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.errors import InvalidArgument

Steps = Sequence[tuple[float, float | None, int]]


def compare(steps: Steps, history: Sequence[Booked], **more: Any) -> dict[str, Check]:
    books = Books()
    for noise, rate, count in steps:
        for _ in range(count):
            books.take_step(noise, rate)
    return {check.name: check for check in books.check(history, **more)}


def outcomes(steps: Steps, history: Sequence[Booked], **more: Any) -> dict[str, str]:
    """What is not as it should be."""
    checks = compare(steps, history, **more)
    return {
        name: check.outcome for name, check in checks.items() if check.outcome != judge.CONFORMS
    }


RIGHT: dict[str, tuple[Steps, Sequence[Booked]]] = {
    "one step": ([(1.0, 0.05, 1)], [(1.0, 0.05, 1)]),
    "many": ([(1.0, 0.05, 60)], [(1.0, 0.05, 60)]),
    "a schedule of noise": (
        [(1.0, 0.05, 2), (0.9, 0.05, 2), (0.8, 0.05, 1)],
        [(1.0, 0.05, 2), (0.9, 0.05, 2), (0.8, 0.05, 1)],
    ),
    "a rate computed in another way": ([(1.0, 3 * 0.1, 5)], [(1.0, 0.3, 5)]),
    "books that do not merge equal steps": ([(1.0, 0.05, 3)], [(1.0, 0.05, 1), (1.0, 0.05, 2)]),
    "no noise, and booked so": ([(0.0, 0.05, 3)], [(0.0, 0.05, 3)]),
}


@pytest.mark.parametrize(("steps", "history"), RIGHT.values(), ids=RIGHT)
def test_right_books_conform(steps: Steps, history: Sequence[Booked]) -> None:
    assert outcomes(steps, history, taken_before=0) == {}


WRONG: dict[str, tuple[Steps, Sequence[Booked], str, str]] = {
    "steps lost": (
        [(1.0, 0.05, 60)],
        [(1.0, 0.05, 20)],
        STEPS,
        "60 steps taken, 20 booked",
    ),
    "the hook is gone": ([(1.0, 0.05, 60)], [], STEPS, "60 steps taken, 0 booked"),
    "half the noise": (
        [(0.5, 0.05, 60)],
        [(1.0, 0.05, 60)],
        NOISE,
        "noise multiplier 0.5 where 1 is booked",
    ),
    "less noise in one step": (
        [(1.0, 0.05, 3), (0.9, 0.05, 1), (1.0, 0.05, 3)],
        [(1.0, 0.05, 7)],
        NOISE,
        "noise multiplier 0.9 where 1 is booked",
    ),
    "less noise, and a step too many on the books": (
        [(1.0, 0.05, 3), (0.9, 0.05, 1)],
        [(1.0, 0.05, 5)],
        NOISE,
        "noise multiplier 0.9 where 1 is booked",
    ),
    "noise decays, and the books do not know": (
        [(1.0, 0.05, 2), (0.5, 0.05, 2)],
        [(1.0, 0.05, 4)],
        NOISE,
        "noise multiplier 0.5 where 1 is booked",
    ),
    "twice the rate": (
        [(1.0, 0.1, 60)],
        [(1.0, 0.05, 60)],
        RATE,
        "records drawn at rate 0.1 where 0.05 is booked",
    ),
    "noise and rate exchanged": (
        [(1.0, 0.2, 1), (2.0, 0.1, 1)],
        [(1.0, 0.1, 1), (2.0, 0.2, 1)],
        RATE,
        "records drawn at rate 0.2 where 0.1 is booked",
    ),
}


@pytest.mark.parametrize(("steps", "history", "name", "seen"), WRONG.values(), ids=WRONG)
def test_what_the_books_miss_is_found(
    steps: Steps, history: Sequence[Booked], name: str, seen: str
) -> None:
    check = compare(steps, history)[name]
    assert (check.outcome, check.seen) == (judge.VIOLATED, seen)


@pytest.mark.parametrize(
    ("steps", "history", "name"),
    [
        ([(1.0, 0.05, 20)], [(1.0, 0.05, 60)], STEPS),
        ([(2.0, 0.05, 20)], [(1.0, 0.05, 20)], NOISE),
        ([(1.0, 1 / 93, 20)], [(1.0, 1 / 92, 20)], RATE),  # as Opacus books 93 batches
    ],
)
def test_too_much_on_the_books_is_a_remark(
    steps: Steps, history: Sequence[Booked], name: str
) -> None:
    assert outcomes(steps, history, taken_before=0) == {name: judge.REMARK}


def test_lost_steps_accuse_neither_noise_nor_rate() -> None:
    steps = [(1.0, 0.05, 20), (0.5, 0.1, 20)]
    for kept in (slice(0, 1), slice(1, 2)):
        found = outcomes(steps, steps[kept], taken_before=0)
        assert [name for name in found if found[name] == judge.VIOLATED] == [STEPS]


def test_only_what_came_since_the_watch_began_is_compared() -> None:
    before = [(2.0, 0.05, 10)]
    history = [(2.0, 0.05, 12), (1.0, 0.05, 3)]
    steps = [(2.0, 0.05, 2), (1.0, 0.05, 3)]
    assert outcomes(steps, history, before=before, taken_before=10) == {}
    lost = compare(steps, [(1.0, 0.05, 3)], before=before)[STEPS]
    assert lost.outcome == judge.VIOLATED
    assert "replaced by shorter ones" in lost.detail


def test_books_that_were_loaded_later_are_too_many() -> None:
    assert outcomes([(1.0, 0.05, 5)], [(0.7, 0.05, 100), (1.0, 0.05, 5)], taken_before=0) == {
        STEPS: judge.REMARK,
        NOISE: judge.REMARK,
    }


def test_steps_lost_on_resume_are_found() -> None:
    history = [(1.0, 0.05, 20)]
    check = compare([(1.0, 0.05, 20)], history, taken_before=40)[EARLIER]
    assert (check.outcome, check.steps) == (judge.VIOLATED, 40)
    assert check.seen == "the optimiser's state counts 40 steps, 0 booked"
    assert outcomes([(1.0, 0.05, 1)], [(1.0, 0.05, 41)], before=[(1.0, 0.05, 40)]) == {
        EARLIER: judge.NOT_TESTED
    }
    kept = {"before": [(1.0, 0.05, 40)], "taken_before": 40}
    assert outcomes([(1.0, 0.05, 1)], [(1.0, 0.05, 41)], **kept) == {}
    fewer = {"before": [(1.0, 0.05, 40)], "taken_before": 10}  # a new optimiser, the old books
    assert outcomes([(1.0, 0.05, 1)], [(1.0, 0.05, 41)], **fewer) == {}


def test_no_private_step_conforms_to_nothing() -> None:
    checks = compare([], [])
    assert {check.outcome for check in checks.values()} == {judge.NOT_TESTED}
    assert checks[STEPS].seen == "no private step was taken"


def test_an_unknown_rate_is_not_tested() -> None:
    checks = compare([(1.0, None, 5)], [(1.0, 0.05, 5)])
    assert checks[RATE].outcome == judge.NOT_TESTED
    assert checks[RATE].seen == "the rate of records is not known"
    partly = compare([(1.0, None, 5), (1.0, 0.1, 1)], [(1.0, 0.05, 6)])
    assert partly[RATE].outcome == judge.VIOLATED


def test_skipped_steps_may_end_anywhere() -> None:
    history = [(1.0, 0.05, 2), (2.0, 0.05, 2)]
    for skipped in range(6):
        left = list(skip_steps(history, skipped))
        assert sum(steps for _, _, steps in left) == max(0, 4 - skipped)
        assert all(steps > 0 for _, _, steps in left)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Books().take_step(-1.0, 0.5), "noise_multiplier"),
        (lambda: Books().take_step(float("nan"), 0.5), "noise_multiplier"),
        (lambda: Books().take_step(1.0, 1.5), "rate"),
    ],
)
def test_bad_calls_are_refused(call: Callable[[], None], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        call()
