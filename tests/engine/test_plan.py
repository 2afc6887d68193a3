"""A plan is its text: whatever changes it changes its hash, and nothing else does."""

import hashlib
import json
import pickle
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.engine.plan import SCHEMA, Plan
from epsilometer.errors import InvalidArgument
from tests.engine.jobs import a_plan

TEXT = st.text(st.characters(), max_size=8)  # lone surrogates too: file names have them
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # what a plan is given
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
PLANS = st.builds(
    Plan,
    audit=TEXT,
    parameters=st.dictionaries(TEXT, JSON, max_size=4),
    units=st.integers(1, 10**9),
    seed=st.integers(0, 2**130),
    inputs=st.dictionaries(TEXT, TEXT, max_size=3),
    versions=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
)


def canonical(plan: Plan) -> str:
    """What is hashed, spelled out: sorted keys, no spaces."""
    plain = {"schema": SCHEMA, **asdict(plan)}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


@given(PLANS)
def test_a_plan_is_what_its_json_says(plan: Plan) -> None:
    text = plan.to_json()
    again = Plan.from_json(text)
    assert again == plan
    assert (again.hash, again.to_json()) == (plan.hash, text)
    assert plan.hash == hashlib.sha256(canonical(plan).encode()).hexdigest()


@given(PLANS, PLANS)
def test_two_plans_share_a_hash_if_and_only_if_they_say_the_same(one: Plan, other: Plan) -> None:
    assert (one.hash == other.hash) == (canonical(one) == canonical(other))


@pytest.mark.parametrize(
    "changed",
    [
        {"audit": "digest2"},
        {"parameters": {"rate": 0.25}},
        {"parameters": {"rate": 0.5, "more": None}},
        {"parameters": {}},
        {"units": 13},
        {"seed": 1},
        {"inputs": {"a": "b"}},
        {"versions": (("digest", "2"),)},
    ],
)
def test_any_change_changes_the_hash(changed: dict[str, Any]) -> None:
    assert a_plan(**changed).hash != a_plan().hash


def test_the_order_of_keys_does_not_change_the_hash() -> None:
    one = a_plan(parameters={"a": 1, "b": {"c": 2, "d": 3}})
    other = a_plan(parameters={"b": {"d": 3, "c": 2}, "a": 1})
    assert one.hash == other.hash


@given(PLANS, st.data())
def test_a_plan_changed_by_hand_is_told(plan: Plan, data: st.DataObject) -> None:
    plain = json.loads(plan.to_json())
    match data.draw(st.sampled_from(["audit", "seed", "parameters"])):
        case "parameters":
            plain["parameters"]["added by hand"] = 1
        case "seed":
            plain["seed"] += 1
        case name:
            plain[name] += "x"
    with pytest.raises(InvalidArgument, match="was changed after the run began"):
        Plan.from_json(json.dumps(plain))


@given(st.data())
def test_a_plan_cut_off_anywhere_is_told(data: st.DataObject) -> None:
    text = a_plan().to_json()
    with pytest.raises(InvalidArgument, match="Expected a plan as JSON"):
        Plan.from_json(text[: data.draw(st.integers(0, len(text) - 1))])


def changed(**parts: Any) -> str:
    return json.dumps({**json.loads(a_plan().to_json()), **parts})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "as JSON"),
        ("[]", "as JSON"),
        ("7", "as JSON"),
        ("null", "as JSON"),
        ("{}", "as JSON"),
        ("[" * 100_000, "as JSON"),
        (pickle.dumps({"a": 1}, 0).decode("ascii"), "as JSON"),
        (changed(schema=1), "schema 3, got one of schema 1"),
        (changed(more=1), "schema"),
        (changed(units=0), "units"),
        (changed(units="12"), "units"),
        (changed(seed=-1), "seed"),
        (changed(versions=3), "as JSON"),
        (changed(parameters={"a": float("nan")}), "JSON"),
        (changed(hash="0" * 64), "was changed"),
        (changed(hash=None), "was changed"),
    ],
)
def test_what_is_no_plan_is_told(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Plan.from_json(text)


@pytest.mark.parametrize("value", [np.zeros(2), {1, 2}, b"x", float("nan"), object()])
def test_parameters_that_are_not_json_are_told(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="JSON values"):
        a_plan(parameters={"x": value})


def test_a_plan_does_not_change_with_what_it_was_made_from() -> None:
    given_ = {"list": [1, 2]}
    plan = a_plan(parameters=given_)
    before = plan.hash
    given_["list"].append(3)
    assert plan.hash == before


def test_no_two_units_and_no_two_seeds_share_a_stream() -> None:
    """Streams that overlapped would repeat a draw; 64 bits do not by chance (10⁻⁹ here)."""
    plans = [a_plan(seed=seed) for seed in (0, 1, 2, 2**64, 2**128 + 1)]
    draws = [plan.stream(unit).integers(2**63, size=200) for plan in plans for unit in range(200)]
    assert np.unique(np.concatenate(draws)).size == len(plans) * 200 * 200


def test_a_unit_has_one_stream_and_it_is_the_published_one() -> None:
    plan = a_plan(seed=7)
    expected = np.random.Generator(
        np.random.Philox(np.random.SeedSequence(entropy=7, spawn_key=(3,)))
    )
    first, second = plan.stream(3).random(10), plan.stream(3).random(10)
    np.testing.assert_array_equal(first, expected.random(10))
    np.testing.assert_array_equal(first, second)
    assert isinstance(plan.stream(3).bit_generator, np.random.Philox)
    spawned = np.random.SeedSequence(7).spawn(4)[3]  # what NumPy's own spawn gives
    expected = np.random.Generator(np.random.Philox(spawned))
    np.testing.assert_array_equal(first, expected.random(10))
