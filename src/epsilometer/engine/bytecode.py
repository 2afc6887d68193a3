"""Digest the bytecode of functions, and tell which names a function changes."""

import dis
import hashlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_STORES = {"STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF"}
_ATTRIBUTES = {"LOAD_METHOD", "LOAD_ATTR"}
# Methods of lists, sets, dictionaries and deques that change them.
_CHANGING = {
    *("append", "appendleft", "extend", "insert", "remove", "pop", "popleft", "popitem", "clear"),
    *("add", "discard", "update", "setdefault", "sort", "reverse"),
}


def digest_bytecode(code: types.CodeType) -> str:
    """Return the SHA-256 of what a code object does: not of its file, lines or comments.

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
    """Yield a code object and all that are nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from list_codes(constant)


def list_names(code: types.CodeType) -> list[str]:
    """Return the names that a code object, or one nested in it, looks up outside, in order."""
    return sorted({name for each in list_codes(code) for name in each.co_names})


def find_changed_names(code: types.CodeType) -> set[str]:
    """Return globals and closed-over names that a function itself rebinds or changes in place.

    Such a name is a counter or a cache and no setting: what it holds says nothing about the code.

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
                changed |= _loaded_name(steps, place - 1)
            elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                changed |= _loaded_name(steps, _skip_expression(steps, place - 1))
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


def _loaded_name(steps: Sequence[dis.Instruction], place: int) -> set[str]:
    """Return the name that an expression begins with, as ``a`` of ``a.b[c]``; none of a local."""
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
    """Return the step before the expression that ends at ``place``, by its effect on the stack."""
    pushed = 0
    while place >= 0:
        step = steps[place]
        pushed += dis.stack_effect(step.opcode, step.arg, jump=False)
        place -= 1
        if pushed == 1:
            break
    return place
