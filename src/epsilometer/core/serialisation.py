"""Write audits as JSON and read them: one format, one code path."""

from pathlib import Path
from typing import Any, get_args

import msgspec

from epsilometer import _validate
from epsilometer._files import read_plain
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.chain import RESULT, check_chain
from epsilometer.core.findings import CheckOutcome
from epsilometer.core.plain import to_plain
from epsilometer.core.printing import to_json_text
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile

FORMAT = 2
_DECODER = msgspec.json.Decoder(Audit, strict=False)  # not strict: "inf" is a number
_NON_FINITE = {"enum": ["inf", "-inf", "nan"]}


class _Head(msgspec.Struct):
    """The part of a file that is needed before it is read."""

    format: Any = None


_HEAD = msgspec.json.Decoder(_Head)


def to_json(audit: Audit) -> str:
    """Return the JSON text of :func:`to_object`."""
    return to_json_text(to_object(audit))


def to_object(audit: Audit) -> dict[str, Any]:
    """Return an audit as a JSON object: its fields, and derived values for other readers.

    ``verdict``, ``epsilon``, ``upper``, ``reach``, ``power`` and ``conformance`` are for
    people and scripts; reading computes them again from the findings.
    """
    plain = to_plain(audit)
    follows = {
        "verdict": audit.verdict,
        "epsilon": audit.epsilon,
        "upper": audit.upper,
        "reach": audit.reach,
        "power": audit.power,
        "conformance": _describe_conformance(audit),
    }
    ordered = {"format": plain.pop("format"), "subject": plain.pop("subject"), **to_plain(follows)}
    return {**ordered, **plain}


def _describe_conformance(audit: Audit) -> dict[str, Any] | None:
    finding = audit.conformance
    if finding is None:
        return None
    counted = {
        _key(outcome): [check.name for check in finding.find(outcome)]
        for outcome in get_args(CheckOutcome)
    }
    return {"verdict": finding.verdict, "steps": finding.steps, **counted}


def _key(outcome: str) -> str:
    return outcome.replace(" ", "_")


def from_json(text: str | bytes) -> Audit:
    """Read an audit that ``to_json`` wrote. Unknown fields are ignored, unknown formats refused.

    Raises:
        InvalidArgument: The text is something else, or damaged.
    """
    check_format(text)
    try:
        return _DECODER.decode(text)
    except EpsilometerError:
        raise
    except (msgspec.DecodeError, RecursionError, ArithmeticError, ValueError, TypeError) as error:
        raise InvalidArgument(
            f"Expected an audit as JSON; this is damaged: {_validate.excerpt(error)}."
        ) from error


def check_format(text: str | bytes) -> None:
    """Refuse anything that is not an audit, or one of another format, in one sentence."""
    try:
        found = _HEAD.decode(text).format
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidArgument(
            "Expected an audit as a JSON object; this is something else, or damaged."
        ) from error
    if found != FORMAT or isinstance(found, bool):
        written = "without a format" if found is None else f"of format {_validate.short(found)}"
        raise InvalidArgument(
            f"Expected an audit of format {FORMAT}, got one {written}. "
            "Read it with the version of epsilometer that wrote it."
        )


def load(path: str | Path) -> Audit:
    """Read the audit in a JSON file, or in the directory of a run.

    Guarantee: the audit equals the one that was saved; its verdict is computed again. In the
        directory of a run, a result, plan or shard that was changed since is refused.
    Assumption: a file outside its run directory was not edited; a signature or a repeated run shows
        that.

    Raises:
        UnreadableFile: The file is missing, damaged, changed, or of another format.

    Example:
        >>> import tempfile, pathlib, epsilometer as em
        >>> audit = em.audit(em.Scores([2.0] * 90, [0.0] * 90), em.Claim(1.0, delta=1e-5))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     em.load(audit.save(pathlib.Path(folder) / "audit.json")) == audit
        True
    """
    where = Path(path)
    file = where / "result.json" if where.is_dir() else where
    try:
        data = read_plain(file)
        if file.name == RESULT:
            check_chain(file.parent)
        return from_json(data)
    except FileNotFoundError as error:
        advice = f" Finish the run: epsilometer runs resume {where}" if where.is_dir() else ""
        if (notes := where / "notes.txt").is_file():  # of Flower, which ended without a result
            advice = f" {notes.read_text('utf-8').partition(chr(10))[0]}"
        raise UnreadableFile(f"Expected an audit in {str(file)!r}, found none.{advice}") from error
    except OSError as error:
        raise UnreadableFile(f"Could not read {str(file)!r}: {error.strerror}.") from error
    except InvalidArgument as error:
        raise UnreadableFile(f"{file}: {error}") from error


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema that every audit written by ``to_json`` satisfies.

    Guarantee: the schema is generated from the classes; ``docs/result.schema.json`` is a copy.
    Assumption: readers ignore unknown fields.

    Example:
        >>> import epsilometer as em
        >>> em.json_schema()["$schema"]
        'https://json-schema.org/draft/2020-12/schema'
    """
    schema: dict[str, Any] = msgspec.json.schema(Audit)
    for part in schema["$defs"].values():  # what a type is; the rest of its docstring is for Python
        part["description"] = part["description"].partition("\n\n")[0]
    audit = schema["$defs"]["Audit"]
    audit["properties"] |= {
        "verdict": {"enum": list(judge.GRAVEST_FIRST)},
        **{name: {"type": "number"} for name in ("epsilon", "upper")},
        **{name: {"anyOf": [{"type": "number"}, {"type": "null"}]} for name in ("reach", "power")},
        "conformance": {"anyOf": [_make_conformance_schema(), {"type": "null"}]},
    }
    audit["required"] = ["format", "verdict", *audit["required"]]
    schema = _allow_non_finite(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _make_conformance_schema() -> dict[str, Any]:
    names = {"type": "array", "items": {"type": "string"}}
    lists = {_key(outcome): names for outcome in get_args(CheckOutcome)}
    verdicts = {"enum": list(get_args(judge.Conformance))}
    return {
        "type": "object",
        "properties": {"verdict": verdicts, "steps": {"type": "integer"}, **lists},
        "required": ["verdict", "steps", *lists],
    }


def _allow_non_finite(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_allow_non_finite(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {"anyOf": [schema, _NON_FINITE]}
    return {key: _allow_non_finite(part) for key, part in schema.items()}
