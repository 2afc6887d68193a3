"""Bytes of finished units: what goes in comes out, and nothing else ever does."""

import hashlib
import io
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from epsilometer.engine import shards
from epsilometer.engine.shards import Arrays, DamagedShard, check_arrays
from epsilometer.errors import InvalidArgument

PLAN = "ab" * 32
DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.byte_string_dtypes(max_len=5),
    hnp.unicode_string_dtypes(endianness="?", max_len=5),
)
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
STEPPED = ARRAYS.map(lambda array: array.T[::-2] if array.ndim else array)  # not contiguous
NAMED = st.dictionaries(st.text(max_size=5), ARRAYS | STEPPED, max_size=3)
UNITS = st.dictionaries(st.integers(0, 10**9), NAMED, max_size=4)
SMALL = {3: {"draws": np.array([0.5, -1.0]), "hit": np.array(True)}, 5: {"draws": np.ones(1)}}


def pack(units: dict[int, Arrays], *, plan: str) -> bytes:
    """A shard in one piece."""
    return b"".join(shards.pack(units, plan=plan))


def unpack(data: bytes, *, plans: set[str]) -> dict[int, Arrays]:
    return shards.unpack(io.BytesIO(data), plans=plans)


def same(one: Arrays, other: Arrays) -> bool:
    return list(one) == list(other) and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in zip(one.values(), other.values(), strict=True)
    )


@given(UNITS)
def test_what_is_packed_is_what_is_unpacked(units: dict[int, Arrays]) -> None:
    again = unpack(pack(units, plan=PLAN), plans={PLAN})
    assert list(again) == list(units)
    assert all(same(again[unit], units[unit]) for unit in units)


@given(NAMED)
def test_unpacked_arrays_are_aligned_and_each_its_own(named: Arrays) -> None:
    for array in unpack(pack({0: named}, plan=PLAN), plans={PLAN})[0].values():
        assert array.flags.aligned
        assert array.flags.owndata
        assert array.flags.writeable


def sealed(whose: Any, contents: bytes = b"") -> bytes:
    """A shard as an adversary makes it: the checksum fits."""
    line = whose if isinstance(whose, bytes) else json.dumps(whose).encode()
    body = line + b"\n" + contents
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def test_every_byte_flipped_is_noticed() -> None:
    data = pack(SMALL, plan=PLAN)
    for at in range(len(data)):
        for flip in (0x01, 0x20, 0x80):  # 0x20 changes the case of a checksum's letters
            torn = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            with pytest.raises(DamagedShard):
                unpack(torn, plans={PLAN})


def test_every_length_but_its_own_is_noticed() -> None:
    data = pack(SMALL, plan=PLAN)
    for length in range(len(data)):
        with pytest.raises(DamagedShard, match="torn"):
            unpack(data[:length], plans={PLAN})
        with pytest.raises(DamagedShard, match="torn"):
            unpack(data[:length] + bytes(len(data) - length), plans={PLAN})  # holes read as zeros
    for more in (b"\0", b"\n", data):
        with pytest.raises(DamagedShard, match="torn"):
            unpack(data + more, plans={PLAN})


@given(st.binary(max_size=300))
def test_noise_is_never_a_shard(data: bytes) -> None:
    with pytest.raises(DamagedShard):
        unpack(data, plans={PLAN})


def test_a_shard_of_another_plan_is_told_by_its_name() -> None:
    with pytest.raises(DamagedShard, match="belongs to the plan cdcdcdcdcdcd…"):
        unpack(pack(SMALL, plan="cd" * 32), plans={PLAN})


OBJECTS = np.array([{"a": 1}, None], dtype=object)


@pytest.mark.parametrize(
    "units",
    [
        [[0, [["x", "|O", [2]]]]],
        [[0, [["x", "O", [1]]]]],
        [[0, [["x", "|V8", [1]]]]],
        [[0, [["x", "<M8[s]", [1]]]]],
        [[0, [["x", [["a", "<f8"]], [1]]]]],
        [[0, [["x", "<f8", [100]]]]],
        [[0, [["x", "<f8", [-1]]]]],
        [[0, [["x", "<f8", [1, "2"]]]]],
        [[0, [["x", "<f8", [2**40, 2**40]]]]],
        [[0, [["x", "<f8", [2**70]]]]],
        [[0, [["x", "<f8", 3]]]],
        [[0, [["x", "nonsense", [1]]]]],
        [[0, [["x", "<f8"]]]],
        [["zero", []]],
        [[0]],
        [0],
        7,
        None,
    ],
)
def test_a_forged_description_is_damage_and_nothing_worse(units: Any) -> None:
    with pytest.raises(DamagedShard, match="its contents do not"):
        unpack(sealed({"plan": PLAN, "units": units}, bytes(64)), plans={PLAN})


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b"null", b"{", b"\xff", b"[" * 100_000, b'{"plan": []}']
)
def test_a_forged_first_line_is_damage_and_nothing_worse(line: bytes) -> None:
    with pytest.raises(DamagedShard):
        unpack(sealed(line), plans={PLAN})


class Bomb:
    """Goes off when unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('unpickled')",)


def pickled_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("data", [pickle.dumps(Bomb()), pickled_npy(), pickle.dumps(Bomb(), 0)])
def test_a_pickle_is_never_opened(data: bytes) -> None:
    whose = {"plan": PLAN, "units": [[0, [["x", "|O", [1]]]]]}
    for shard in (data, sealed(data), sealed(whose, data)):
        with pytest.raises(DamagedShard):
            unpack(shard, plans={PLAN})


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "as a dict, got NoneType"),
        ([1], "as a dict, got list"),
        (np.zeros(3), "as a dict, got ndarray"),
        ({1: np.zeros(3)}, "as a dict"),
        ({"x": object()}, "'x' of a unit, got object"),
        ({"x": OBJECTS}, "unpickled"),
        ({"x": np.zeros(1, "M8[s]")}, "datetime64"),
        ({"x": np.zeros(1, [("a", "f8")])}, "'x'"),
    ],
)
def test_what_cannot_be_kept_is_told(returned: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check_arrays(returned)


@given(NAMED)
def test_what_can_be_kept_is_kept_as_it_is(named: Arrays) -> None:
    assert same(check_arrays(named), named)


def test_plain_numbers_become_arrays() -> None:
    kept = check_arrays({"rate": 0.5, "names": ["a", "bc"]})
    assert kept["rate"].shape == ()
    assert kept["names"].dtype.kind == "U"
