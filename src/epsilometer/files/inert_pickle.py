"""Read pickle without running it: objects become inert and keep their arguments."""

import functools
import io
import pickle
from collections import OrderedDict
from typing import Any, ClassVar

import numpy as np


class Inert:
    """Stand in for an object in a file: do nothing, and keep its arguments."""

    def __new__(cls, *args: Any, **named: Any) -> "Inert":
        """Keep arguments; the class that the file names is never imported."""
        made = super().__new__(cls)
        made.__dict__.update({"": args, **named})
        return made

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        """Keep attributes by their names, and any other state as it is."""
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.__dict__.update({str(name): value for name, value in part.items()})
            else:
                self.append(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep an entry of what was a dictionary."""
        self.extend((key, value))

    def append(self, item: Any) -> None:
        """Keep an item of what was a list."""
        self.__dict__.setdefault("items", []).append(item)

    add = append

    def extend(self, items: Any) -> None:
        """Keep several."""
        for item in items:
            self.append(item)

    def __call__(self, *args: Any, **named: Any) -> "Inert":
        """Keep the arguments of what was a function."""
        return type(self)(self, *args, **named)

    def __hash__(self) -> int:
        return id(self)


def _allow() -> dict[tuple[str, str], Any]:
    """Return callables that are safe to run: containers and arrays."""
    rebuild: Any = np.zeros(0).__reduce__()[0]
    buffer = np.zeros(1).__reduce_ex__(5)[0]
    scalar = np.float64(0).__reduce__()[0]
    plain = (bytearray, set, frozenset, dict, list, tuple, complex, slice, range, object)
    allowed: dict[tuple[str, str], Any] = {("builtins", each.__name__): each for each in plain}
    for core in ("numpy._core", "numpy.core"):
        # Whatever kind of array it was: of others only the numbers are kept
        allowed[f"{core}.multiarray", "_reconstruct"] = lambda _, *how: rebuild(np.ndarray, *how)
        allowed[f"{core}.multiarray", "scalar"] = scalar
        allowed[f"{core}.numeric", "_frombuffer"] = buffer
    allowed["numpy", "ndarray"], allowed["numpy", "dtype"] = np.ndarray, np.dtype
    allowed["collections", "OrderedDict"] = OrderedDict
    allowed["_codecs", "encode"] = _encode
    return allowed


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    """Return text as bytes, as old protocols write them."""
    return text.encode("latin1" if encoding == "latin1" else "utf-8")


_Pure: Any = pickle._Unpickler


class Reader(_Pure):  # type: ignore[misc]
    """Read pickle, and the arrays that joblib writes in between, into inert objects."""

    dispatch: ClassVar[dict[int, Any]] = dict(_Pure.dispatch)
    allowed: ClassVar[dict[tuple[str, str], Any]] = _allow()

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.stream = stream

    def find_class(self, module: str, name: str) -> Any:
        """Return an inert class of that name; arrays and containers as they are."""
        if (module, name) in self.allowed:
            return self.allowed[module, name]
        return _make_inert(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """Keep what points elsewhere, as weights of torch do."""
        return Inert(pid)

    def load_build(self) -> None:
        """Set an object's state; replace joblib's wrapper by the array that follows it."""
        state = self.stack[-1]
        _Pure.load_build(self)
        if type(self.stack[-1]).__name__ == "NumpyArrayWrapper" and isinstance(state, dict):
            self.stack[-1] = _read_wrapped(self.stream, state)

    dispatch[pickle.BUILD[0]] = load_build


@functools.cache
def _make_inert(module: str, name: str) -> type[Inert]:
    return type(name.rpartition(".")[2], (Inert,), {"__module__": module})


def _read_wrapped(stream: io.BytesIO, state: dict[str, Any]) -> Any:
    """Read the array that joblib writes after its description."""
    if state["dtype"].hasobject:
        return Reader(stream).load()
    if state.get("numpy_array_alignment_bytes") is not None:
        stream.read(stream.read(1)[0])
    count = int(np.prod(state["shape"], dtype=np.int64))
    values = np.frombuffer(stream.read(count * state["dtype"].itemsize), state["dtype"])
    return values.reshape(state["shape"], order=state.get("order", "C"))
