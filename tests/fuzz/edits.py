"""Seeded edits of valid files: what disks, editors, other programs and ill will do to them."""

import io
import json
import random
import re
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Edit: TypeAlias = Callable[[bytes, random.Random], bytes]
LARGEST = 1 << 20  # bytes: a file grows no further
DEEP = 20_000  # brackets in brackets

TOKENS = (
    *("nan", "NaN", "-inf", "Infinity", "1e999", "-1e999", "1e-999", "-0.0", "0", "-1", "1.5"),
    *("9" * 400, "9" * 5000, "1_000", "0x10", "１２", "٣", "1e", "+", "--1", "1e308", "5e-324"),
    *("true", "null", "None", "[]", "{}", '""', "''", '"', "'", "\\", "\\u0000", '"\\ud800"'),
    *("1979-05-27", "12:00:00", "inside", "member", "=", ",", ";", ":", "#", "[", "]", "\n"),
    *("score", "kind", "__class__", "../../etc", "%s", "{0}", "${HOME}", "x" * 3000, "2**63"),
    *("18446744073709551616", "-9223372036854775809", "\ufeff", "\u202e", "\u2028", "e\u0301"),
)
BYTES = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x1a"),
    *(b"\r", b"\r\n", b"\n\n", b"\t", b"\x0b", b"\x0c", b"\x85", b'"', b"PK\x03\x04", b"\x1f\x8b"),
)
_TOKEN = re.compile(rb"[-+.\w]+")


def edited(data: bytes, edits: Sequence[Edit], rng: random.Random) -> bytes:
    """One to eight edits, mostly few."""
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 8))):
        data = rng.choice(edits)(data, rng)[: 2 * LARGEST]
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\x01"
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _cut_off(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _piece(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 64, 1000)))


def _take_out(data: bytes, rng: random.Random) -> bytes:
    start, end = _piece(data, rng)
    return data[:start] + data[end:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start, end = _piece(data, rng)
    again = data[start:end] * rng.choice((1, 2, 10, 1000))
    return data[:end] + again[: max(0, LARGEST - len(data))] + data[end:]


def _move(data: bytes, rng: random.Random) -> bytes:
    start, end = _piece(data, rng)
    rest, at = data[:start] + data[end:], rng.randrange(len(data) - (end - start) + 1)
    return rest[:at] + data[start:end] + rest[at:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    odd = rng.choice((rng.choice(BYTES), rng.randbytes(rng.choice((1, 4, 50)))))
    return data[:at] + odd + data[at:]


def _token(data: bytes, rng: random.Random) -> bytes:
    """Another word or number in the place of one."""
    found = list(_TOKEN.finditer(data[:LARGEST]))
    if not found:
        return rng.choice(TOKENS).encode("utf-8", "surrogatepass")
    one = rng.choice(found)
    new = rng.choice((rng.choice(TOKENS).encode("utf-8", "surrogatepass"), rng.choice(found)[0]))
    return data[: one.start()] + new + data[one.end() :]


def _line(data: bytes, rng: random.Random) -> bytes:
    """Lines twice, left out, changed for another, or ended as elsewhere."""
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            lines.insert(other, lines[at])
        case 1:
            del lines[at]
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\x00")))
        case _:
            return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe")) + data
    return b"\n".join(lines)


def _nest(data: bytes, rng: random.Random) -> bytes:
    at, (left, right) = rng.randrange(len(data) + 1), rng.choice((b"[]", b"{}", b"()"))
    deep = rng.choice((10, 1000, DEEP))
    return data[:at] + bytes([left]) * deep + bytes([right]) * deep + data[at:]


def _recode(data: bytes, rng: random.Random) -> bytes:
    return data.decode("latin-1").encode(rng.choice(("utf-16", "utf-8", "utf-32-be")))


ANYWHERE: tuple[Edit, ...] = (
    *(_flip, _flip, _cut_off, _take_out, _repeat, _move, _insert),
    *(_token, _token, _token, _token, _line, _line, _nest, _recode),
)


# JSON: the same value but in one place


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1.5, 10**400, -(10**25), float("nan"), float("inf")),
    *("", "inf", "-inf", "nan", "1", "\ud800", "\x00", "x" * 3000, [], {}, [[]], {"kind": 1}),
    *(1e308, 5e-324, -0.0, [None], "EpsilonLowerBound", 2**63, 2**53 + 1, [0, 1], ["a", 1.0]),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(place for key, part in inner for place in _places(part, (*path, key)))]


def in_json(data: bytes, rng: random.Random) -> bytes:
    """One value of another kind, twice, gone, or changed for another."""
    try:
        whole = json.loads(data)
        places = [place for place in _places(whole) if place]
    except (ValueError, RecursionError):
        return _flip(data, rng)
    if not places:
        return json.dumps(rng.choice(_VALUES)).encode()
    *path, key = rng.choice(places)
    holder = whole
    for step in path:
        holder = holder[step]
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(("extra", "", "kind", "__proto__", "\ud800"))] = holder[key]
        case 1:
            holder.extend([holder[key]] * rng.choice((1, 5, 500)))
        case 2:
            other = whole
            for step in rng.choice(places):
                other = other[step]
            holder[key] = json.loads(json.dumps(other))
        case _:
            holder[key] = rng.choice(_VALUES)
    return json.dumps(whole, indent=rng.choice((None, 2))).encode()


# Archives: the same members but one


def in_archive(edit: Sequence[Edit]) -> Edit:
    """An edit of one member of a zip, which stays a zip."""

    def one(data: bytes, rng: random.Random) -> bytes:
        members = unzipped(data)
        name = rng.choice(sorted(members))
        if rng.random() < 0.1:
            del members[name]
        else:
            members[name] = edited(members[name], edit, rng)
        return zipped(members)

    return one


def unzipped(data: bytes) -> dict[str, bytes]:
    """Members by name; none where it is no zip any more."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: archive.read(name) for name in archive.namelist()} or {"x.npy": b""}
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError):
        return {"x.npy": data}
    except Exception as error:  # zlib.error and what else a broken zip raises here
        return {"x.npy": str(error).encode()}


def zipped(members: dict[str, bytes], *, method: int = zipfile.ZIP_STORED) -> bytes:
    """The members as a zip, always the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return packed.getvalue()


def npy(array: Any) -> bytes:
    """An array as .npy, pickled where it has to be."""
    packed = io.BytesIO()
    np.save(packed, array, allow_pickle=True)
    return packed.getvalue()


class Planted:
    """Would say so if it were ever unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise AssertionError('unpickled')",))


def _arrays() -> tuple[bytes, ...]:
    odd = [
        np.array([Planted()], dtype=object),
        np.array(3.0),
        np.zeros(0),
        np.zeros((0, 5)),
        np.array([np.nan, 1.0]),
        np.array([1 + 2j]),
        np.array(["a", "b"]),
        np.array([b"1", b"0"]),
        np.array([1.5, -np.inf], np.float16),
        np.array([2**64 - 1], np.uint64),
        np.array([1e300, np.inf], np.longdouble),
        np.zeros(3, [("score", "f8"), ("member", "i4")]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([True, False]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((1, 1, 1, 1, 1)),
        np.array([1, 2], ">i8"),
        np.array(["\ud800"[:0], "x" * 1000]),
    ]
    return tuple(npy(array) for array in odd)


_ARRAYS = _arrays()
_HEADERS = (
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<U999999999', 'fortran_order': False, 'shape': (9,), }",
    b"__import__('os').getcwd()",
    b"{'descr': [('x', '<f8')], 'fortran_order': 1, 'shape': (2,), }",
    b"(" * 5000,
)


def in_npz(data: bytes, rng: random.Random) -> bytes:
    """Another array in the place of one, under its name or another; a header that lies; a bomb."""
    members = unzipped(data)
    name = rng.choice(sorted(members))
    match rng.randrange(6):
        case 0 | 1:
            members[name] = rng.choice(_ARRAYS)
        case 2:
            members[rng.choice(("score.npy", "member.npy", "x.npy", "y.npy"))] = members[name]
        case 3:
            members[name] = members[rng.choice(sorted(members))]
        case 4:
            header = rng.choice(_HEADERS) + b" \n"
            members[name] = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        case _:
            zeros = npy(np.zeros(rng.choice((10, 10**6))))
            return zipped({**members, name: zeros}, method=zipfile.ZIP_DEFLATED)
    return zipped(members)
