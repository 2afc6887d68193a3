"""Define the plan of a run: everything that determines its result, a hash, and differences."""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

import msgspec
import numpy as np

from epsilometer import _validate
from epsilometer.engine.code import LOADED
from epsilometer.engine.environment import list_version_changes, versions
from epsilometer.errors import InvalidArgument

SCHEMA = 3
_PUBLIC = ("audit", "parameters", "units", "seed", "versions", "source")
_NAMED = 8  # differences that a message names
_SETTINGS = ("audit", "parameters", "units", "seed")
_ACCEPTING: ContextVar[bool] = ContextVar("accepting changed code", default=False)


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """Hold an earlier plan of the same run, whose units count although code has changed since.

    Attributes:
        plan: Its hash.
        changes: What changed, in words.
    """

    plan: str
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that determines a result. Two plans with one hash have the same result, byte for
    byte, on the same versions.

    Attributes:
        audit: Name of the subject in the registry of ``epsilometer.audit``.
        parameters: Its settings and whatever else determines the result, as JSON values.
        units: How many units of work there are.
        seed: Seed from which every unit's stream is derived.
        inputs: Name → SHA-256 of what is read; keyed once it is sealed.
        code: Name → SHA-256 of the user's functions, of what they close over, and of the modules
            that they use; keyed once it is sealed.
        source: SHA-256 of the user's code, without any values; empty if there is none.
        versions: (distribution, version) pairs that a result names.
        environment: Distribution → version of all that was imported when the run began.
        accepted: Earlier plans of the same run whose units count.

    Example:
        >>> plan = Plan(audit="mine", parameters={"rate": 0.5}, units=10, seed=0)
        >>> Plan.from_json(plan.to_json()) == plan
        True
    """

    audit: str
    parameters: Mapping[str, Any]
    units: int
    seed: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    versions: tuple[tuple[str, str], ...] = field(default_factory=versions)
    environment: Mapping[str, str] = field(default_factory=dict)
    accepted: tuple[Accepted, ...] = ()

    def __post_init__(self) -> None:
        _validate.whole(1, units=self.units)
        _validate.whole(0, seed=self.seed)
        try:
            restored = json.loads(_encode_canonically(self.parameters))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"Expected parameters of a plan to be JSON values ({error}). "
                "Give numbers, texts and lists; name data by their fingerprint in inputs."
            ) from error
        object.__setattr__(self, "parameters", restored)

    @property
    def hash(self) -> str:
        """SHA-256 of everything above. It depends on the data, so it must not be shared."""
        return hashlib.sha256(_encode_canonically(self._to_plain())).hexdigest()

    @property
    def public_hash(self) -> str:
        """SHA-256 of settings, source and versions, which results may publish."""
        plain = self._to_plain()
        return hashlib.sha256(
            _encode_canonically({name: plain[name] for name in _PUBLIC})
        ).hexdigest()

    def seal(self, secret: bytes) -> "Plan":
        """Return the plan with keyed digests of data, which cannot be guessed without the secret.

        Example:
            >>> plan = Plan(audit="mine", parameters={}, units=1, seed=0, inputs={"y": "0" * 64})
            >>> plan.seal(b"one").inputs == plan.seal(b"another").inputs
            False
        """
        return replace(self, inputs=_key(secret, self.inputs), code=_key(secret, self.code))

    def stream(self, unit: int) -> np.random.Generator:
        """Return the unit's own counter-based random stream; no two units share one."""
        sequence = np.random.SeedSequence(self.seed, spawn_key=(unit,))
        return np.random.Generator(np.random.Philox(sequence))

    def to_json(self) -> str:
        """Return the plan and its hash as JSON text."""
        return json.dumps({**self._to_plain(), "hash": self.hash}, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan that ``to_json`` wrote; refuse anything else, and manual changes."""
        try:
            plain = json.loads(text)
            schema, stated = plain.pop("schema"), plain.pop("hash")
            unknown = set(plain) ^ {part.name for part in fields(cls)}
            plan = None if schema != SCHEMA or unknown else msgspec.convert(plain, cls)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"Expected a plan as JSON, got something else: {str(error)[:200]}."
            ) from error
        if plan is None:
            raise InvalidArgument(
                f"Expected a plan of schema {SCHEMA}, got one of schema {_validate.short(schema)}. "
                "Finish the run with the version of epsilometer that began it."
            )
        if plan.hash != stated:
            raise InvalidArgument(
                f"Expected the plan to hash to {str(stated)[:12]}…, as it says of itself, "
                f"got {plan.hash[:12]}…. It was changed after the run began, and what is finished "
                "belongs to the old plan. Undo the change, or begin a new run."
            )
        return plan

    def _to_plain(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def _key(secret: bytes, digests: Mapping[str, str]) -> dict[str, str]:
    """Return digests that only someone who has the secret can compute from the data."""
    return {
        name: hmac.digest(
            secret, f"{name}\0{digest}".encode("utf-8", "surrogatepass"), "sha256"
        ).hex()
        for name, digest in digests.items()
    }


def _encode_canonically(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


class CodeChanged(InvalidArgument):
    """The code has changed since the run began."""


@contextmanager
def accept_changes(accepted: bool) -> Iterator[None]:
    """Let nested runs, such as those of shadow models, continue with changed code too."""
    token = _ACCEPTING.set(accepted)
    try:
        yield
    finally:
        _ACCEPTING.reset(token)


def accepts_changes() -> bool:
    """Tell whether the run that this call is part of continues with changed code."""
    return _ACCEPTING.get()


def describe_difference(there: Plan, here: Plan) -> str:
    """Return how two plans differ in settings and data, or "" if they may share a run."""
    found = [
        f"{name} {_shorten(old)} there, {_shorten(new)} here"
        for part in _SETTINGS
        for name, old, new in _list_differences(part, getattr(there, part), getattr(here, part))
    ]
    found += [f"other data in {name}" for name in _list_changed(there.inputs, here.inputs)]
    return _join(found)


def list_code_changes(there: Plan, here: Plan) -> list[str]:
    """Return descriptions of changes in code and versions since a run began."""
    old, new = dict(there.versions), dict(here.versions)
    versions = {name: (old.get(name), new.get(name)) for name in {**old, **new}}
    found = [
        f"{name} {was or 'absent'} there, {now or 'absent'} here"
        for name, (was, now) in versions.items()
        if was != now
    ]
    found += [text for text in list_version_changes(there.environment) if text not in found]
    changed = _list_changed(there.code, here.code)
    return found + [name for name in changed if _is_meaningful(name, changed, there, here)]


def refuse_changes(directory: str, changes: list[str]) -> CodeChanged:
    """Return the error that names the changes and the remedies."""
    return CodeChanged(
        f"Expected the code that began the run in {directory!r}, found changes: {_join(changes)}. "
        "Units of both would be mixed. Begin a new run in another directory, or undo the change; "
        "accept_changes=True (--accept-changes) goes on, and the result says so."
    )


def _is_meaningful(name: str, changed: list[str], there: Plan, here: Plan) -> bool:
    """Tell whether a name is meaningful alone: a module may be loaded here, and not there."""
    if not name.startswith(LOADED):
        return True
    source = f"module {name.removeprefix(LOADED)}"
    return name in there.code and name in here.code and source not in changed


def _list_changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({**old, **new}) if old.get(name) != new.get(name)]


def _list_differences(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences: dotted names, each with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**new, **old}:
            yield from _list_differences(f"{name}.{key}", old.get(key), new.get(key))
    elif json.dumps(old) != json.dumps(new):  # 1 and 1.0 are equal, and another text
        yield name, old, new


def _join(parts: list[str]) -> str:
    more = len(parts) - _NAMED
    return "; ".join(parts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
