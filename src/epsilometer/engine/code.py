"""Find the code that an audit runs: the user's functions, what they close over, their modules.

A run must never continue with other code than it began with. What the user's functions do follows
from their bytecode, from what they close over, and from the modules that they import. Installed
packages count by version. Code that is looked up by name at run time is not found.
"""

import dataclasses
import dis
import functools
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epsilometer.engine.environment import (
    Origin,
    digest_source,
    find_origin,
    list_imports,
    read_source,
)
from epsilometer.engine.fingerprints import fingerprint, is_tensor
from epsilometer.errors import EpsilometerError

LOADED = "loaded module "  # begins names that are compared only where both sides know them
_MOST = 100_000  # objects that are checked
_PLAIN = (str, bytes, bool, int, float, complex, Path, type(None), np.generic)
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_STORES = {"STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF"}
_ATTRIBUTES = {"LOAD_METHOD", "LOAD_ATTR"}
_CHANGING = {
    *("append", "appendleft", "extend", "insert", "remove", "pop", "popleft", "popitem", "clear"),
    *("add", "discard", "update", "setdefault", "sort", "reverse"),
}


@dataclass(frozen=True)
class Code:
    """Hold digests of the code that an audit runs.

    Attributes:
        digests: Name of a function, class, module, closed-over or global value → its SHA-256. Since
            it includes values, it is for the private plan only.
        source: SHA-256 of the user's code, without any values; empty if there is none.
        packages: Installed packages that it imports, such as ``torch``.
    """

    digests: Mapping[str, str]
    source: str
    packages: tuple[str, ...]


def find_code(*roots: Any, values: bool = True) -> Code:
    """Return digests of the code of objects: functions, classes, and everything they reach.

    Guarantee: the same code has the same digests in every process; nothing is executed.
    Assumption: nothing relevant is imported under a name computed at run time; that is not found.

    Args:
        roots: Objects to start from, such as a subject with its functions.
        values: Whether to digest closed-over values and globals, too.

    Example:
        >>> mine = {"__name__": "mine"}
        >>> exec("def scale(factor): return lambda x: factor * x", mine)
        >>> double, triple = (find_code(mine["scale"](factor)).digests for factor in (2, 3))
        >>> [name for name in double if double[name] != triple[name]]
        ['closure factor of mine.scale.<locals>.<lambda>']
    """
    finder = _Finder(values=values)
    for root in roots:
        finder.visit(root)
    return finder.finish()


class _Finder:
    """Hold the state of one search."""

    def __init__(self, *, values: bool) -> None:
        self._values = values
        self._digests: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._modules: dict[str, None] = {}  # of users, in the order in which they were found
        self._packages: set[str] = set()
        self._seen: dict[int, Any] = {}  # kept, so that no number is given twice
        self._todo: list[Any] = []

    def visit(self, root: Any) -> None:
        self._todo.append(root)
        while self._todo and len(self._seen) < _MOST:
            value = self._todo.pop()
            if isinstance(value, _PLAIN) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self._look(value)

    def finish(self) -> Code:
        todo, done = list(self._modules), set[str]()
        while todo:
            name = todo.pop()
            origin = find_origin(name)
            if name not in done and self._is_users(name) and origin.kind == "user":
                self._add_module(name, origin)
                todo += list_imports(name, origin)
            done.add(name)
        whole = "".join(f"{name} {self._sources[name]}\n" for name in sorted(self._sources))
        source = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest() if whole else ""
        return Code(dict(sorted(self._digests.items())), source, tuple(sorted(self._packages)))

    def _look(self, value: Any) -> None:
        """Digest one object, and queue its parts."""
        match value:
            case types.ModuleType():
                self._reach(value.__name__)
            case types.FunctionType():
                self._look_at_function(value)
            case types.MethodType():
                self._look_at_method(value)
            case functools.partial():
                self._todo += [value.func, *value.args, *value.keywords.values()]
                arguments = (value.args, value.keywords)
                self._add_value(f"arguments of {_name(value.func)}", arguments)
            case staticmethod() | classmethod():
                self._todo.append(value.__func__)
            case property():
                self._todo += [value.fget, value.fset, value.fdel]
            case type():
                self._look_at_class(value)
            case np.ndarray():
                if value.dtype.hasobject:
                    self._todo += value.ravel().tolist()
            case Mapping():
                self._todo += list(value.values())
            case list() | tuple() | set() | frozenset():
                self._todo += value
            case _:
                self._look_at_object(value)

    def _look_at_method(self, method: types.MethodType) -> None:
        function: Any = method.__func__
        self._todo += [function, method.__self__]
        if self._is_users(str(getattr(function, "__module__", ""))):  # of others it is a cache
            held = getattr(method.__self__, "__dict__", {})
            # Of its parts settings count; data are inputs, and caches differ between processes.
            settings = {
                name: part
                for name, part in held.items()
                if _is_setting(part) and not dataclasses.is_dataclass(part)
            }
            self._add_value(f"object of {_name(function)}", settings)

    def _look_at_function(self, function: types.FunctionType) -> None:
        module = str(function.__globals__.get("__name__", ""))
        captured = _find_captured(function)
        self._todo += captured.values()
        self._todo.append(getattr(function, "__wrapped__", None))
        if not self._reach(module):
            return
        name = _name(function)
        code = function.__code__
        self._add(f"function {name}", digest_bytecode(code))
        if find_origin(module).path is None:  # as in a notebook: there is no file to read
            self._sources[f"function {name}"] = _digest_text(function, code)
        changed = find_changed_names(code)
        for part, value in captured.items():
            if part.rpartition(" ")[2] not in changed:
                self._add_value(f"{part} of {name}", value)
        for each in list_names(code):
            if each in function.__globals__:
                value = function.__globals__[each]
                self._todo.append(value)
                if each not in changed and _is_setting(value):
                    self._add_value(f"global {each} of {module}", value, once=True)

    def _look_at_class(self, cls: type) -> None:
        if not self._reach(_find_module(cls)):
            return
        own = vars(cls)
        plain = {name: repr(part) for name, part in own.items() if _is_constant(name, part)}
        bases = [f"{base.__module__}.{base.__qualname__}" for base in cls.__bases__]
        self._add(f"class {_name(cls)}", fingerprint([bases, plain]))
        self._todo += [*cls.__bases__, type(cls)]
        self._todo += [own[name] for name in sorted(own) if not name.startswith("__dataclass_")]

    def _look_at_object(self, value: Any) -> None:
        if is_tensor(value) or hasattr(value, "to_numpy"):
            self._reach(_find_module(type(value)))
            return  # tensors and tables are data
        for name in ("__wrapped__", "py_func"):  # of caches, and of functions that numba compiles
            self._todo.append(inspect.getattr_static(value, name, None))
        self._todo.append(type(value))
        state = getattr(value, "__dict__", None)
        if isinstance(state, dict):
            self._todo += [state[name] for name in sorted(state, key=str)]
        for cls in type(value).__mro__:
            for name in _list_slots(cls):
                self._todo.append(inspect.getattr_static(value, name, None))
                self._todo.append(getattr(value, name, None))

    def _reach(self, module: str) -> bool:
        """Record a module as reached; return whether the user wrote it."""
        if self._is_users(module):
            self._modules.setdefault(module)
            return True
        return False

    def _is_users(self, module: str) -> bool:
        top = module.partition(".")[0]
        kind = find_origin(top).kind
        if kind == "package":
            self._packages.add(top)
        if kind not in ("user", "unknown"):
            return False
        # A namespace may be shared with packages; a module without origin was typed in.
        return find_origin(module).kind in ("user", "unknown")

    def _add_module(self, name: str, origin: Origin) -> None:
        if origin.path is not None:
            digest = read_source(origin.path).digest
            self._add(f"module {name}", digest)
            self._sources[f"module {name}"] = digest
        loaded = sys.modules.get(name)
        if isinstance(loaded, types.ModuleType):  # it may be another than its file is now
            self._add(f"{LOADED}{name}", _digest_loaded(loaded))

    def _add_value(self, name: str, value: Any, *, once: bool = False) -> None:
        if self._values and not isinstance(value, types.ModuleType):
            self._add(name, _digest_value(value), once=once)

    def _add(self, name: str, digest: str, *, once: bool = False) -> None:
        """Store a digest; two under one name, as for lambdas, are both kept."""
        free, count = name, 1
        while free in self._digests and not once:
            count += 1
            free = f"{name} ({count})"
        self._digests[free] = digest


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _find_module(cls: type) -> str:
    """Return the module of a class; for a Cython metaclass, ``cls.__module__`` is not text."""
    module = cls.__module__
    return module if isinstance(module, str) else str(type.__dict__["__module__"].__get__(cls))


def _find_captured(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function holds besides its code: defaults, and what it closes over."""
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held[f"closure {name}"] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    if function.__defaults__:
        held["defaults"] = function.__defaults__
    if function.__kwdefaults__:
        held["keyword defaults"] = function.__kwdefaults__
    return held


def _digest_text(function: types.FunctionType, code: types.CodeType) -> str:
    try:
        return digest_source(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return digest_bytecode(code)


def _digest_value(value: Any) -> str:
    """Return the SHA-256 of contents; of objects without contents, such as locks, the type's."""
    try:
        return fingerprint(value)
    except EpsilometerError:
        return f"{type(value).__module__}.{type(value).__qualname__}"


def _digest_loaded(module: types.ModuleType) -> str:
    """Return the SHA-256 of the functions and classes that a module defines, as loaded."""
    found = []
    for name, value in sorted(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        parts: Iterable[tuple[str, Any]] = [(name, value)]
        if isinstance(value, type):
            parts = ((f"{name}.{each}", part) for each, part in sorted(vars(value).items()))
        found += [
            f"{each} {digest_bytecode(part.__code__)}"
            for each, part in parts
            if isinstance(part, types.FunctionType)
        ]
    return hashlib.sha256("\n".join(found).encode("utf-8", "surrogatepass")).hexdigest()


def _is_setting(value: Any) -> bool:
    """Tell whether a global counts by value: a number, a text, an array, a list of those."""
    if isinstance(value, (*_PLAIN, np.ndarray)) or hasattr(value, "to_numpy") or is_tensor(value):
        return True
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return True
    if isinstance(value, Mapping):
        return all(_is_setting(part) for part in (*value.keys(), *value.values()))
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_setting, value))


def _is_constant(name: str, value: Any) -> bool:
    return isinstance(value, _PLAIN) and not (name.startswith("__") and name.endswith("__"))


def _list_slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


# Methods of lists, sets, dictionaries and deques that change them.


def digest_bytecode(code: types.CodeType) -> str:
    """Return the SHA-256 of a code object's bytecode, without its file, lines or comments.

    Example:
        >>> texts = ("a + 1", "a+1  # one", "a + 2")
        >>> one, same, other = (digest_bytecode(compile(text, "", "eval")) for text in texts)
        >>> one == same, one == other
        (True, False)
    """
    digest = hashlib.sha256()
    for text in _describe(code):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()


def list_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all code objects nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from list_codes(constant)


def list_names(code: types.CodeType) -> list[str]:
    """Return the outer names that a code object, or one nested in it, looks up, in order."""
    return sorted({name for each in list_codes(code) for name in each.co_names})


def find_changed_names(code: types.CodeType) -> set[str]:
    """Return globals and closed-over names that a function itself rebinds or changes in place.

    Such a name is a counter or a cache, not a setting: its value says nothing about the code.

    Example:
        >>> source = "def count():\\n  seen[kind].append(1); total[2 * key] = len(rest)"
        >>> sorted(find_changed_names(compile(source, "", "exec")))
        ['seen', 'total']
    """
    changed: set[str] = set()
    for each in list_codes(code):
        steps = list(dis.get_instructions(each))
        for place, step in enumerate(steps):
            if step.opname in _STORES:
                changed.add(step.argval)
            elif _changes_object(step):
                changed |= _find_loaded_name(steps, place - 1)
            elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                changed |= _find_loaded_name(steps, _skip_expression(steps, place - 1))
    return changed


def _changes_object(step: dis.Instruction) -> bool:
    """Tell whether a step changes the object that was loaded just before it."""
    if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
        return True
    return step.opname in _ATTRIBUTES and step.argval in _CHANGING


def _describe(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_name} {code.co_flags} {code.co_argcount} {code.co_posonlyargcount}"
    yield f"{code.co_kwonlyargcount} {code.co_names} {code.co_varnames}"
    yield f"{code.co_freevars} {code.co_cellvars} {code.co_exceptiontable.hex()}"
    yield code.co_code.hex()
    for constant in code.co_consts:
        yield from _describe_constant(constant)


def _describe_constant(constant: Any) -> Iterator[str]:
    if isinstance(constant, types.CodeType):
        yield from _describe(constant)
    elif isinstance(constant, frozenset):  # whose order is another in every process
        yield f"set {sorted(map(repr, constant))}"
    elif isinstance(constant, tuple):
        yield f"tuple of {len(constant)}"
        for part in constant:
            yield from _describe_constant(part)
    else:
        yield f"{type(constant).__name__} {constant!r}"


def _find_loaded_name(steps: Sequence[dis.Instruction], place: int) -> set[str]:
    """Return the name that an expression begins with: ``a`` of ``a.b[c]``; None for a local."""
    while place >= 0:
        step = steps[place]
        if step.opname in _LOADS:
            return {str(step.argval)}
        if step.opname == "BINARY_SUBSCR":
            place = _skip_expression(steps, place - 1)
        elif step.opname == "LOAD_ATTR":
            place -= 1
        else:
            break
    return set()


def _skip_expression(steps: Sequence[dis.Instruction], place: int) -> int:
    """Return the step before the expression that ends at ``place``, by its stack effect."""
    pushed = 0
    while place >= 0:
        step = steps[place]
        pushed += dis.stack_effect(step.opcode, step.arg, jump=False)
        place -= 1
        if pushed == 1:
            break
    return place
