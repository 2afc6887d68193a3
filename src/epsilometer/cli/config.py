"""Files that say what is audited: TOML in sections. Here, those of ``epsilometer dpsgd``.

Every field below is a key of its section, its type what may stand there; one without a default must
be given.
"""

import sys
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from epsilometer import _validate
from epsilometer.audits.dpsgd_views import Look
from epsilometer.canaries.gradient import Adversary
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile

DIGITS = "digits"
_Section = TypeVar("_Section")
_Whole = TypeVar("_Whole")
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
}


@dataclass(frozen=True, kw_only=True)
class Data:
    """Section ``[data]``.

    Attributes:
        file: .csv, .parquet or .npz, from the folder in which the command is called; or "digits".
        label: The column or array of labels, where it has no usual name.
        records: How many are taken, the first; all by default.
        divide_by: Every feature is divided by this: 255 makes bytes of images 0 to 1.
    """

    file: str
    label: str | None = None
    records: int | None = None
    divide_by: float | None = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """Section ``[model]``.

    Attributes:
        name: Which.
        hidden: Neurons of the hidden layer of an MLP; 32 by default.
    """

    name: Literal["mlp", "lenet5", "cnn"] = "mlp"
    hidden: int | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """Section ``[training]``.

    Attributes:
        batch_size: B; the expected one where it varies.
        learning_rate: Of the mean gradient.
        epochs: Passes over the records.
        optimizer: Which.
        momentum: Of SGD.
        clip_norm: C.
        noise_multiplier: σ; by default what the accountant of Poisson sampling asks for the claim.
        sampler: How batches are drawn, as of ``cli.samplers``.
        device: "cpu" or "cuda".
    """

    batch_size: int
    learning_rate: float
    epochs: int = 1
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float | None = None
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    sampler: str = "shuffle"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Section ``[audit]``.

    Attributes:
        delta: δ at which ε is bounded.
        runs: Runs with the record, and as many without it.
        claim: The ε that was promised.
        adversary: What she may choose.
        adjacency: What training without the record is.
        views: What she sees.
        canaries: Random gradients of one further run; 0: no such run.
        confidence: One-sided.
        until_refuted: Stop as soon as the claim has fallen.
        seed: From which all runs are drawn.
    """

    delta: float
    runs: int
    claim: float | None = None
    adversary: Adversary = "partially_informed"
    adjacency: Literal["zero_out", "add_remove", "replace"] = "zero_out"
    views: tuple[Look, ...] = ("updates", "model")
    canaries: int = 0
    confidence: float = 0.95
    until_refuted: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is audited, and how: the whole file."""

    data: Data
    model: Model = field(default_factory=Model)
    training: Training
    audit: Audit

    def __post_init__(self) -> None:
        model, training, audit = self.model, self.training, self.audit
        _validate.whole(0, **{"audit.seed": audit.seed})
        above_zero = {
            "data.divide_by": self.data.divide_by,
            "training.noise_multiplier": training.noise_multiplier,
        }
        _validate.positive(**{key: value for key, value in above_zero.items() if value is not None})
        if model.hidden is not None and model.name != "mlp":
            raise InvalidArgument(
                f"Expected no model.hidden with model.name = {model.name!r}, got {model.hidden}: "
                "only mlp has it."
            )
        if training.momentum is not None and training.optimizer != "sgd":
            raise InvalidArgument(
                f"Expected no training.momentum with training.optimizer = {training.optimizer!r}, "
                f"got {training.momentum}: only sgd has it."
            )
        if audit.claim is None and training.noise_multiplier is None:
            raise InvalidArgument(
                "Expected audit.claim or training.noise_multiplier, got neither: the noise is the "
                "one that is given, or the one that the claim asks for."
            )
        if audit.until_refuted and audit.claim is None:
            raise InvalidArgument(
                "Expected audit.claim with audit.until_refuted, got none: nothing could fall."
            )
        if not audit.views or len(set(audit.views)) < len(audit.views):
            raise InvalidArgument(
                f"Expected audit.views to be one or more of {', '.join(get_args(Look))}, each "
                f"once, got {list(audit.views)}."
            )

    def plain(self) -> dict[str, Any]:
        """As JSON values, for a plan; :func:`from_plain` takes them back."""
        return asdict(self)


def read_config(path: Path | None) -> Config:
    """The config in a file; without one, what is bundled."""
    return read_sections(Config, path, bundled="dpsgd.toml")


def read_sections(whole: type[_Whole], path: Path | None, *, bundled: str) -> _Whole:
    """What a file says, as a dataclass of sections; without a file, what is bundled."""
    if path is None:
        text = resources.files("epsilometer").joinpath(f"data/{bundled}").read_text("utf-8")
        return from_sections(whole, tomllib.loads(text))
    plain = read_toml(path)
    try:
        return from_sections(whole, plain)
    except EpsilometerError as error:
        raise InvalidArgument(f"{path}: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """What a file says."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"Could not read {str(path)!r}: {error}.") from error
    except (ValueError, RecursionError) as error:  # numbers too long and lists too deep, too
        raise UnreadableFile(
            f"Expected TOML in {str(path)!r}: {_validate.excerpt(error)}."
        ) from error


def from_plain(plain: Mapping[str, Any]) -> Config:
    """A config from the sections of a file, or of a plan; whatever is not known is refused."""
    return from_sections(Config, plain)


def from_sections(whole: type[_Whole], plain: Mapping[str, Any]) -> _Whole:
    """A dataclass of sections from those of a file, or of a plan.

    Raises:
        InvalidArgument: A section or a key is unknown, missing, or of another type.
    """
    kinds = get_type_hints(whole)
    _refuse_unknown("section", plain, list(kinds))
    for name, value in plain.items():
        if not isinstance(value, Mapping):
            raise InvalidArgument(
                f"Expected a section [{name}], got {name} = {_validate.short(value)}."
            )
    parts = {name: _section(kind, name, plain.get(name, {})) for name, kind in kinds.items()}
    return whole(**parts)


def _section(kind: type[_Section], name: str, values: Mapping[str, Any]) -> _Section:
    hints = get_type_hints(kind)
    _refuse_unknown(f"key of [{name}]", values, list(hints))
    given = {key: value for key, value in values.items() if value is not None}  # none in a plan
    for part in fields(kind):  # type: ignore[arg-type]
        if part.name not in given and part.default is MISSING:
            raise InvalidArgument(
                f"Expected {name}.{part.name}, {_in_words(hints[part.name])}, got none."
            )
    return kind(
        **{key: _checked(f"{name}.{key}", hints[key], value) for key, value in given.items()}
    )


def _refuse_unknown(what: str, given: Mapping[str, Any], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise InvalidArgument(
                f"Expected a {what} of {', '.join(known)}, got {_validate.short(name)}."
            )


def _checked(name: str, kind: Any, value: Any) -> Any:
    """The value, if it is of the kind."""
    kind = _without_none(kind)
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        each = get_args(kind)[0]
        if all(_is(each, item) for item in value):
            return tuple(value)
    elif _is(kind, value):
        return float(value) if kind is float else value
    raise InvalidArgument(f"Expected {name} to be {_in_words(kind)}, got {_validate.short(value)}.")


def _is(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        # TOML has whole numbers of any length.
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        return real and (isinstance(value, float) or abs(value) <= sys.float_info.max)
    return type(value) is kind  # True is no whole number


def _in_words(kind: Any) -> str:
    kind = _without_none(kind)
    if get_origin(kind) is tuple:
        return f"a list, each {_in_words(get_args(kind)[0])}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return _WORDS[kind]


def _without_none(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    return kind
