"""Canaries on coordinates of their own: orthonormal, cheap, the same for the same key."""

import numpy as np
import pytest
import torch

from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.canaries import StridedCanaries

SHAPES = [(7, 31), (7,), (3, 5, 2, 2), (1,)]


def make(count: int, key: int = 3) -> StridedCanaries:
    return StridedCanaries(count=count, sizes=[int(np.prod(shape)) for shape in SHAPES], key=key)


def rows_of(canaries: StridedCanaries) -> np.ndarray:
    rows = []
    for each in np.eye(canaries.count):
        tensors = [torch.zeros(shape) for shape in SHAPES]
        canaries.add(tensors, each)
        rows.append(torch.cat([tensor.reshape(-1) for tensor in tensors]).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("count", [1, 2, 20, 97])
def test_they_are_orthonormal_and_share_no_coordinate(count: int) -> None:
    rows = rows_of(make(count))
    np.testing.assert_allclose(rows @ rows.T, np.eye(count), atol=1e-5)
    assert ((rows != 0).sum(axis=0) <= 1).all()


@pytest.mark.parametrize("count", [1, 20, 97])
def test_dots_are_those_of_the_rows(count: int) -> None:
    canaries, rng = make(count), np.random.default_rng(0)
    tensors = [torch.from_numpy(rng.normal(size=shape).astype("f")) for shape in SHAPES]
    others = [torch.from_numpy(rng.normal(size=shape).astype("f")) for shape in SHAPES]
    flat = torch.cat([(a - b).reshape(-1) for a, b in zip(tensors, others, strict=True)]).numpy()
    np.testing.assert_allclose(
        canaries.dots(tensors, less=others), rows_of(canaries) @ flat, atol=1e-5
    )


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    tensors = [torch.from_numpy(rng.normal(size=shape).astype("f")) for shape in SHAPES]
    whole, whole_rows = make(13).dots(tensors), rows_of(make(13))
    monkeypatch.setattr("epsilometer.integrations.opacus.canaries._CHUNK", 20)
    np.testing.assert_allclose(make(13).dots(tensors), whole, atol=1e-6)
    np.testing.assert_array_equal(rows_of(make(13)), whole_rows)


def test_every_canary_has_its_share_of_every_tensor() -> None:
    canaries = StridedCanaries(count=50, sizes=[50 * 64, 50 * 16], key=0)
    tensors = [torch.zeros(50, 64), torch.zeros(50, 16)]  # a row of 64, and m divides the rows
    canaries.add(tensors, np.eye(50)[7])
    assert (tensors[0] != 0).any(dim=0).float().mean() > 0.5  # no single column
    assert (tensors[1] != 0).any()


def test_the_key_decides() -> None:
    assert not np.array_equal(rows_of(make(5, key=1)), rows_of(make(5, key=2)))
    np.testing.assert_array_equal(rows_of(make(5, key=1)), rows_of(make(5, key=1)))


def test_more_canaries_than_parameters_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most one canary per parameter"):
        make(10_000)
