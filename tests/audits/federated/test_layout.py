from typing import Any

import numpy as np
import pytest

from epsilometer.audits.federated.iterates import Layout
from epsilometer.errors import InvalidArgument

MODEL: dict[str, Any] = {
    "w": np.arange(6.0, dtype=np.float32).reshape(2, 3),
    "batches": np.array([7]),
    "half": np.ones(2, np.float16),
    "mask": np.array([True, False]),
    "double": np.array(3.0),
}


def test_only_floating_point_arrays_count_and_each_keeps_its_type() -> None:
    layout = Layout(MODEL)
    assert layout.size == 9
    moved = layout.move(MODEL, np.full(9, 0.5, np.float32))
    for name, value in MODEL.items():
        assert moved[name].dtype == value.dtype
        assert moved[name].shape == value.shape
        change = 0.5 if value.dtype.kind == "f" else 0
        np.testing.assert_array_equal(moved[name], value + change if change else value)
    np.testing.assert_array_equal(layout.flatten(moved) - layout.flatten(MODEL), 0.5)
    assert MODEL["w"][0, 0] == 0  # what came is not changed


def test_a_direction_goes_where_it_is_read() -> None:
    layout, direction = Layout(MODEL), np.arange(1, 10, dtype=np.float32)
    zeros = {name: np.zeros_like(value) for name, value in MODEL.items()}
    np.testing.assert_array_equal(layout.flatten(layout.move(zeros, direction)), direction)


def test_counters_that_became_floating_point_numbers_still_do_not_count() -> None:
    layout = Layout(MODEL)
    assert layout.flatten({**MODEL, "batches": np.array([7.5])}).size == 9


@pytest.mark.parametrize("change", [{"w": None}, {"w": np.zeros((3, 2), np.float32)}])
def test_another_model_is_refused(change: Any) -> None:
    other = {k: v for k, v in {**MODEL, **change}.items() if v is not None}
    with pytest.raises(InvalidArgument, match="Expected the arrays of the first round, 'w'"):
        Layout(MODEL).flatten(other)


def test_arrays_may_be_left_out_by_name() -> None:
    layout = Layout(MODEL, without=("dou*", "half"))
    assert layout.size == 6
    moved = layout.move(MODEL, np.ones(6, np.float32))
    assert moved["double"] == 3
    with pytest.raises(InvalidArgument, match="or left out"):
        Layout(MODEL, without=("*",))


def test_a_model_of_integers_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="Expected floating-point arrays in the model"):
        Layout({"trees": np.arange(3)})
