"""Convert a subject's settings to plain values and back: one list of options per audit.

A subject is a frozen dataclass. Its fields are at once the Python signature, the section of a TOML
file, the parameters of a plan and the provenance of a result. Data never travel by value: a field
with the metadata ``DATA`` is written as a reference to a file, or as ``{"supplied": …}``.
"""

import dataclasses
import pkgutil
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import numpy as np

from epsilometer import _validate
from epsilometer.core.plain import to_plain
from epsilometer.core.registry import Registry, path_of
from epsilometer.errors import InvalidArgument

# Frozen dataclasses that settings may hold, by short name. The short name is what TOML files and
# flags use ("partial:60"); JSON has the name of the class with all its fields.
CHOICES: Registry[type] = Registry(
    "choices",
    {
        "shuffle": "epsilometer.sampling.samplers:Shuffle",
        "partial": "epsilometer.sampling.samplers:PartialShuffle",
        "batch-then-shuffle": "epsilometer.sampling.samplers:BatchThenShuffle",
        "balls-in-bins": "epsilometer.sampling.samplers:BallsInBins",
        "sequential": "epsilometer.sampling.samplers:Sequential",
        "poisson": "epsilometer.sampling.samplers:Poisson",
        "without-replacement": "epsilometer.sampling.samplers:WithoutReplacement",
        "all-ranks": "epsilometer.stats.thresholds:AllRanks",
        "rank-grid": "epsilometer.stats.thresholds:RankGrid",
        "rank-sum": "epsilometer.stats.thresholds:RankSum",
        "hold-out": "epsilometer.stats.thresholds:HoldOut",
        "bonferroni": "epsilometer.stats.thresholds:Bonferroni",
        "fixed": "epsilometer.stats.thresholds:Fixed",
        "best": "epsilometer.stats.thresholds:Best",
        "published": "epsilometer.stats.thresholds:Published",
        "refuted": "epsilometer.core.stopping:UntilRefuted",
        "narrow": "epsilometer.core.stopping:UntilNarrow",
        "pdtp-at-most": "epsilometer.audits.classifier.release:PdtpAtMost",
        "change-at-most": "epsilometer.audits.classifier.release:ChangeAtMost",
        "gain-at-most": "epsilometer.audits.classifier.release:GainAtMost",
        "advantage-at-most": "epsilometer.audits.classifier.release:AdvantageAtMost",
        "caught-at-most": "epsilometer.audits.classifier.release:CaughtAtMost",
        "no-record-in-answers": "epsilometer.audits.classifier.release:NoRecordInAnswers",
        "no-record-in-file": "epsilometer.audits.classifier.release:NoRecordInFile",
        "sgd": "epsilometer.networks.optimizers:SGD",
        "adam": "epsilometer.networks.optimizers:Adam",
        "every-epoch": "epsilometer.audits.federated.rounds:EveryEpoch",
        "uniform-cohorts": "epsilometer.audits.federated.rounds:UniformCohorts",
        "poisson-cohorts": "epsilometer.audits.federated.rounds:PoissonCohorts",
        "once-in": "epsilometer.audits.federated.rounds:OnceIn",
        "schedule": "epsilometer.audits.federated.rounds:Schedule",
        "independent": "epsilometer.sampling.noise:IndependentNoise",
        "tree": "epsilometer.sampling.noise:TreeNoise",
        "matrix": "epsilometer.sampling.noise:MatrixNoise",
        "square-root": "epsilometer.sampling.noise:SquareRoot",
        "fixed-clip": "epsilometer.audits.federated.rounds:FixedClip",
        "adaptive-clip": "epsilometer.audits.federated.rounds:AdaptiveClip",
        "form": "epsilometer.audits.posterior.disclosure:ReleaseForm",
        "text-run": "epsilometer.audits.text.subject:TextRun",
        "score-file": "epsilometer.files.score_files:ScoreFile",
        "model-on-records": "epsilometer.audits.dpsgd.source:ModelOnRecords",
        "dropout-on-records": "epsilometer.cli.sources:DropoutOnRecords",
        "table-model": "epsilometer.integrations.sklearn:TableModel",
        "table-regressor": "epsilometer.integrations.sklearn:TableRegressor",
        "fitted-table": "epsilometer.integrations.sklearn.model_files:FittedTable",
        "federated-task": "epsilometer.audits.federated.source:FederatedTask",
        "saved-model": "epsilometer.integrations.huggingface.saved_model:SavedModel",
        "digits": "epsilometer.files.digits:Digits",
    },
    also=("samplers",),
)
# Metadata of a field that holds data, and of one that may name its data by row number or text.
DATA = types.MappingProxyType({"data": True})
NAMED_DATA = types.MappingProxyType({"data": True, "named": True})
_SHOWN = 4  # arrays of a tuple whose shapes are listed one by one
_SAID = 300  # characters of a message of msgspec
_PLAIN = (bool, int, float, str, type(None))
_PART: Any = str | int | float | list[Any]  # of a list: anything that the subject itself may read


@dataclasses.dataclass(frozen=True)
class Unstated:
    """Placeholder for a setting that a file should state and does not.

    Attributes:
        question: Question to the user, who must state the setting.
        answers: Possible answers.
    """

    question: str
    answers: tuple[str, ...]


def to_settings(subject: Any) -> dict[str, Any]:
    """Return the fields of a subject as JSON values.

    Example:
        >>> from epsilometer.stats.thresholds import HoldOut
        >>> to_settings(HoldOut(0.25))
        {'fraction': 0.25}
    """
    settings, functions = {}, set()
    for field in dataclasses.fields(subject):
        if not field.init:
            continue
        value = getattr(subject, field.name)
        data = field.metadata.get("data")
        if data and isinstance(value, (Mapping, list, tuple)) and value:
            encoded: Any = _mark_supplied(value)  # without reading what may be millions of values
        else:
            encoded = _encode(value)
            if data and not _is_reference(encoded, named=bool(field.metadata.get("named"))):
                encoded = _mark_supplied(value)
        if data and isinstance(encoded, Mapping) and "function" in encoded:
            functions.add(field.name)
        settings[field.name] = encoded
    if settings.get("source") is not None:  # it brings the data that were read from it
        return {
            name: value
            for name, value in settings.items()
            if name not in functions and not has_supplied(value)
        }
    return settings


def describe_shapes(subject: Any) -> tuple[tuple[str, str], ...]:
    """Return the shapes of a subject's data by field: nothing that depends on values.

    A digest would reveal the last record to an adversary who knows all others.

    Example:
        >>> import epsilometer as em
        >>> describe_shapes(em.Scores(inside=[2.0, 3.0], outside=[0.0]))
        (('inside', '2'), ('outside', '1'))
    """
    every = (
        (field.name, _describe_shape(getattr(subject, field.name)))
        for field in dataclasses.fields(subject)
        if field.metadata.get("data")
    )
    return tuple((name, shape) for name, shape in every if shape)


def _describe_shape(value: Any) -> str:
    """Return the shape of arrays, the length of containers, and nothing for other values."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return " × ".join(map(str, shape)) or "one number"
    if isinstance(value, (list, tuple)) and len(value) <= _SHOWN:
        shapes = [getattr(part, "shape", None) for part in value]
        if value and all(isinstance(each, tuple) for each in shapes):
            return ", ".join(map(_describe_shape, value))
    if isinstance(value, (list, tuple, Mapping)):
        return f"{type(value).__name__} of {len(value):,}"
    return ""  # of a text not even its length


def from_settings(cls: type, settings: Mapping[str, Any], *, trust: bool = False) -> Any:
    """Return the subject that :func:`to_settings` wrote, or that a section of TOML describes.

    Args:
        cls: The subject's class.
        settings: Its fields by name; missing ones take their defaults.
        trust: Import functions that the settings name. Without it, a file cannot run code.

    Raises:
        InvalidArgument: A field is unknown, missing, of the wrong type, or must be supplied.
    """
    name = cls.__name__
    if not isinstance(settings, Mapping):
        raise InvalidArgument(f"Expected settings of {name}, got {_validate.short(settings)}.")
    known = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in settings:
        if key not in known:
            raise InvalidArgument(
                f"Expected a setting of {name} among {', '.join(known)}, "
                f"got {_validate.short(key)}."
            )
    refuse_supplied(name, settings)
    hints = typing.get_type_hints(cls)
    values = {
        key: _decode(f"{name}.{key}", value, hints[key], trust=trust)
        for key, value in settings.items()
        if value is not None or known[key].default is not dataclasses.MISSING
    }
    if (source := values.get("source")) is not None:
        if not hasattr(source, "load"):
            raise InvalidArgument(
                f"Expected {name}.source with its type, got none. For example: score-file."
            )
        brought = source.load()
        if strange := set(brought) - set(known):
            raise InvalidArgument(
                f"Expected a source of {name}, got {type(source).__name__}, which brings "
                f"{', '.join(sorted(strange))} for another subject."
            )
        for key in getattr(source, "STATES", ()):
            if isinstance(brought.get(key), Unstated):
                check_answer(f"{name}.{key}", values.get(key), brought.pop(key))
            if key in brought and values.get(key, brought[key]) != brought[key]:
                raise InvalidArgument(
                    f"Expected {name}.{key} as the file states it, "
                    f"{_validate.short(brought[key])}, got {_validate.short(values[key])}."
                )
        values = {**brought, **values}
    for key, field in known.items():
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and key not in values:
            raise InvalidArgument(f"Expected {name}.{key}, got none.")
    return cls(**values)


def check_answer(name: str, answer: Any, unstated: Unstated) -> None:
    """Ask for a setting that a file does not state, and refuse an answer that cannot be right."""
    if answer is None:
        raise InvalidArgument(unstated.question)
    if answer not in unstated.answers:
        raise InvalidArgument(
            f"Expected {name} to be one of {', '.join(unstated.answers)} for such a file, got "
            f"{_validate.short(answer)}."
        )


def refuse_supplied(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that lack supplied data, and name what must be supplied."""
    supplied = [key for key, value in settings.items() if has_supplied(value)]
    if supplied:
        raise InvalidArgument(
            f"Expected {', '.join(supplied)} of {name}: supplied from Python when it was audited, "
            "so not in this file. Make the same call again from Python."
        )


def parse_choice(text: str, *, among: tuple[str, ...] = ()) -> Any:
    """Return a choice from its short name and, after a colon, its number.

    Args:
        text: For example ``shuffle`` or ``partial:1000``.
        among: Accepted short names; all by default.

    Example:
        >>> parse_choice("hold-out:0.25")
        HoldOut(fraction=0.25)
    """
    name, colon, number = text.partition(":")
    known = among or tuple(CHOICES)
    if name not in known or name not in CHOICES:
        raise InvalidArgument(f"Expected one of {', '.join(known)}, got {_validate.short(text)}.")
    cls = CHOICES[name]
    if not colon:
        return _build(name, cls, ())
    try:
        value = int(number) if number.isascii() and number.isdecimal() else float(number)
    except ValueError as error:
        raise InvalidArgument(
            f"Expected a number after {name!r}, got {_validate.short(number)}."
        ) from error
    return _build(name, cls, (value,))


def section_name(subject: str) -> str:
    """Return the name of a subject's section in a TOML file.

    Example:
        >>> section_name("ShuffledSGD"), section_name("DPSGD"), section_name("TrainFunction")
        ('shuffled_sgd', 'dpsgd', 'train_function')
    """
    words = []
    for place, letter in enumerate(subject):
        starts = letter.isupper() and place and not subject[place - 1].isupper()
        words.append(f"_{letter}" if starts else letter)
    return "".join(words).lower()


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return to_plain(value)
    if isinstance(value, Path):
        return _write_path(value)
    if isinstance(value, (list, tuple, Mapping)):
        return _encode_parts(value)
    if (name := _find_choice_name(type(value))) is not None:
        settings = to_settings(value)
        declared = {field.name for field in dataclasses.fields(value) if field.metadata.get("data")}
        if any(_is_supplied(part) for key, part in settings.items() if key not in declared):
            return _mark_supplied(value)  # as a Record: no part of it by value
        return {"type": name, **settings}
    function = _find_function_name(value)
    return _mark_supplied(value) if function is None else {"function": function}


def _encode_parts(value: Any) -> Any:
    """Encode a list or a mapping; one part that cannot be encoded makes the whole supplied."""
    if isinstance(value, Mapping):
        named = {str(key): _encode(part) for key, part in value.items()}
        return named if not any(map(_is_supplied, named.values())) else _mark_supplied(value)
    parts = [_encode(part) for part in value]
    return parts if not any(map(_is_supplied, parts)) else _mark_supplied(value)


def _decode(where: str, value: Any, hint: Any, *, trust: bool) -> Any:
    if isinstance(value, Mapping) and "type" in value:
        return _decode_choice(where, value, trust=trust)
    if isinstance(value, Mapping) and set(value) == {"function"}:
        return _import_function(where, value["function"], trust=trust)
    if _is_plain(hint):
        return _convert(where, value, hint)
    if isinstance(value, str) and value.partition(":")[0] in CHOICES:
        return parse_choice(value)
    if isinstance(value, (list, tuple)):  # parts may be texts that the subject itself reads
        return tuple(_decode(where, part, _PART, trust=trust) for part in value)
    _refuse_bare(where, value, hint)
    return value


def _convert(where: str, value: Any, hint: Any) -> Any:
    """Convert a plain value to the type of its field."""
    try:
        if hint in (Path, Path | None):
            return None if value is None else Path(msgspec.convert(value, str))
        if hint == Path | str:
            text = msgspec.convert(value, str)
            return text if "://" in text else Path(text)
        non_finite = isinstance(value, str) and value in ("inf", "-inf", "nan")
        return msgspec.convert(value, hint, strict=not non_finite)
    except msgspec.ValidationError as error:
        expected = str(error).partition(" - at ")[0].replace("`", "")
        if get_origin(hint) is Literal:  # msgspec repeats the value, however long
            expected = f"Expected one of {', '.join(map(str, get_args(hint)))}"
        raise InvalidArgument(
            f"{where}: {expected[:_SAID]}, got {_validate.short(value)}."
        ) from error


def _refuse_bare(where: str, value: Any, hint: Any) -> None:
    """Refuse a text or a number where only choices, functions or data are allowed."""
    union = get_origin(hint) in (types.UnionType, typing.Union)
    taken = tuple(part for part in (get_args(hint) if union else (hint,)) if part in _PLAIN)
    if isinstance(value, (str, int, float)) and not isinstance(value, taken):
        raise InvalidArgument(
            f"{where}: Expected the name of a choice ({', '.join(CHOICES)}), "
            f"got {_validate.short(value)}."
        )


def _decode_choice(where: str, value: Mapping[str, Any], *, trust: bool) -> Any:
    named = value["type"]
    by_class = {CHOICES.path(name).rpartition(":")[2]: name for name in CHOICES}
    settings = {key: part for key, part in value.items() if key != "type"}
    if isinstance(named, str) and (named in CHOICES or named in by_class):
        cls = CHOICES[by_class.get(named, named)]
        return from_settings(cls, settings, trust=trust)
    if not isinstance(named, str) or ":" not in named:
        raise InvalidArgument(
            f"Expected {where}.type among {', '.join(CHOICES)}, got {_validate.short(named)}."
        )
    _refuse_code(where, named, trust=trust)
    return from_settings(pkgutil.resolve_name(named), settings, trust=trust)


def _import_function(where: str, named: Any, *, trust: bool) -> Any:
    _refuse_code(where, named, trust=trust)
    try:
        if ":" not in named:  # which would be a module
            raise ValueError("it has no colon")
        return pkgutil.resolve_name(named)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InvalidArgument(
            f"Expected {where} as module:name, got {_validate.short(named)}: {error}."
        ) from error


def _refuse_code(where: str, named: Any, *, trust: bool) -> None:
    if not trust:
        raise InvalidArgument(
            f"Expected --trust to import {_validate.short(named)} for {where}: a file "
            "runs code only if you allow it."
        )


def _build(name: str, cls: Any, arguments: tuple[Any, ...]) -> Any:
    own = dataclasses.fields(cls)
    if arguments and (not own or own[0].type is bool):  # the number would be taken for a switch
        raise InvalidArgument(f"Expected no number after {name!r}, got {arguments[0]!r}.")
    try:
        return cls(*arguments)
    except TypeError as error:
        raise InvalidArgument(f"Expected {name} with its number, as {name}:4 ({error}).") from error


def _find_choice_name(cls: type) -> str | None:
    """Return the name under which a class is written; ``module:class`` if unregistered."""
    if not dataclasses.is_dataclass(cls):
        return None
    if CHOICES.name_of(cls) is not None:
        return cls.__name__
    path = path_of(cls)
    return path if _can_import(path, cls) else None


def _find_function_name(value: Any) -> str | None:
    if not callable(value) or not hasattr(value, "__qualname__"):
        return None
    path = f"{getattr(value, '__module__', '')}:{value.__qualname__}"
    return path if _can_import(path, value) else None


def _can_import(path: str, value: Any) -> bool:
    if "<" in path:
        return False
    try:
        return pkgutil.resolve_name(path) is value
    except (ImportError, AttributeError, ValueError):
        return False


def _mark_supplied(value: Any) -> dict[str, str]:
    return {"supplied": type(value).__name__}


def has_supplied(value: Any) -> bool:
    """Tell whether a setting, or a part of it, was supplied from Python and not written."""
    if isinstance(value, Mapping):
        return _is_supplied(value) or any(map(has_supplied, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_supplied, value))


def _is_supplied(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"supplied"}


def _is_reference(encoded: Any, *, named: bool) -> bool:
    """Tell whether a data field names its data: empty, a choice or, if allowed, a row."""
    return (
        encoded in (None, [])
        or (named and isinstance(encoded, (str, int)))
        or (isinstance(encoded, Mapping) and bool({"type", "function"} & set(encoded)))
    )


def _is_plain(hint: Any) -> bool:
    """Tell whether msgspec can convert to this type: plain values, and tuples of them."""
    if hint in _PLAIN or hint in (None, Path):
        return True
    if get_origin(hint) is Literal:
        return True
    if get_origin(hint) in (types.UnionType, typing.Union, tuple):
        return all(_is_plain(part) for part in get_args(hint) if part is not Ellipsis)
    return False


def _write_path(path: Path) -> str:
    """Return a path that is safe to share: an absolute path is cut to its file name."""
    return path.name if path.is_absolute() else path.as_posix()
