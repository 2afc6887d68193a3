"""Compare two plans of one directory: another run, changed code, or the same."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from epsilometer.engine.code import LOADED
from epsilometer.engine.environment import list_version_changes
from epsilometer.engine.plan import Plan
from epsilometer.errors import InvalidArgument

_NAMED = 8  # differences that a message names
_SETTINGS = ("audit", "parameters", "units", "seed")
_ACCEPTING: ContextVar[bool] = ContextVar("accepting changed code", default=False)


class CodeChanged(InvalidArgument):
    """The code that began a run is not the code that would go on with it."""


@contextmanager
def accept_changes(accepted: bool) -> Iterator[None]:
    """Let runs inside this one, as those of shadow models, go on with changed code too."""
    token = _ACCEPTING.set(accepted)
    try:
        yield
    finally:
        _ACCEPTING.reset(token)


def accepts_changes() -> bool:
    """Tell whether the run that this call is a part of goes on with changed code."""
    return _ACCEPTING.get()


def describe_difference(there: Plan, here: Plan) -> str:
    """Return how two plans differ in settings and data, which makes them two runs; or nothing."""
    found = [
        f"{name} {_short(old)} there, {_short(new)} here"
        for part in _SETTINGS
        for name, old, new in _list_differences(part, getattr(there, part), getattr(here, part))
    ]
    found += [f"other data in {name}" for name in _list_changed(there.inputs, here.inputs)]
    return _join(found)


def list_code_changes(there: Plan, here: Plan) -> list[str]:
    """Return what changed in code and versions since a run began, in words."""
    old, new = dict(there.versions), dict(here.versions)
    versions = {name: (old.get(name), new.get(name)) for name in {**old, **new}}
    found = [
        f"{name} {was or 'absent'} there, {now or 'absent'} here"
        for name, (was, now) in versions.items()
        if was != now
    ]
    found += [text for text in list_version_changes(there.environment) if text not in found]
    changed = _list_changed(there.code, here.code)
    return found + [name for name in changed if _tells(name, changed, there, here)]


def refuse_changes(directory: str, changes: list[str]) -> CodeChanged:
    """Return the error that says what changed, and what can be done."""
    return CodeChanged(
        f"Expected the code that began the run in {directory!r}, found changes: {_join(changes)}. "
        "Units of both would be mixed. Begin a new run in another directory, or undo the change; "
        "accept_changes=True (--accept-changes) goes on, and the result says so."
    )


def _tells(name: str, changed: list[str], there: Plan, here: Plan) -> bool:
    """Tell whether a name says something of its own: a module may be loaded here, and not there."""
    if not name.startswith(LOADED):
        return True
    source = f"module {name.removeprefix(LOADED)}"
    return name in there.code and name in here.code and source not in changed


def _list_changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({**old, **new}) if old.get(name) != new.get(name)]


def _list_differences(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs, by dotted names, each with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**new, **old}:
            yield from _list_differences(f"{name}.{key}", old.get(key), new.get(key))
    elif json.dumps(old) != json.dumps(new):  # 1 and 1.0 are equal, and another text
        yield name, old, new


def _join(parts: list[str]) -> str:
    more = len(parts) - _NAMED
    return "; ".join(parts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
