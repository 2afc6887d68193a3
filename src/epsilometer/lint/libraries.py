"""Describe libraries to the checks: their DP calls, samplers and loaders, all as data.

``libraries.toml`` has those that come with the project. Another package adds its own by an entry
point of the group ``epsilometer.lint`` that names a :class:`Library`.
"""

import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import msgspec

from epsilometer.errors import InvalidArgument

Known: TypeAlias = tuple[str, str]  # top package, and last part of a name
Kind: TypeAlias = Literal["hedged", "accountant", "training"]
_GROUP = "epsilometer.lint"


@dataclass(frozen=True, kw_only=True)
class DpCall:
    """Calls that assume Poisson sampling, and when they do.

    Attributes:
        names: What is called.
        kind: ``accountant`` computes, or calibrates noise to, an ε of Poisson sampling; ``hedged``
            prints another ε beside it; ``training`` is DP training without an ε of its own.
        needs_method: Only where the module also calls a method of this name.
        needs_argument: Only where this argument is given.
        unless_argument: Not where this argument is True.
        unless_anywhere: Not where some call of the module has this argument as False.
        unless_attribute: Not where the module reads an attribute of this name.
    """

    names: tuple[str, ...]
    kind: Kind = "accountant"
    needs_method: str = ""
    needs_argument: str = ""
    unless_argument: str = ""
    unless_anywhere: str = ""
    unless_attribute: str = ""


@dataclass(frozen=True, kw_only=True)
class Loader:
    """A call that shuffles if one of its arguments has a certain value.

    Attributes:
        argument: The argument that decides.
        position: Where it stands without its name; None if it needs it.
        default: What it is when left out.
        shuffles_when: The value that shuffles.
    """

    argument: str
    position: int | None = None
    default: bool = False
    shuffles_when: bool = True


@dataclass(frozen=True, kw_only=True)
class Library:
    """What the checks know of one library.

    Attributes:
        package: Its top package.
        calls: What assumes Poisson sampling.
        engines: Methods that replace a loader by one that samples by Poisson, as ``make_private``.
        samplers: What draws batches by coins: where one is used, shuffled loaders are taken to
            serve other ends.
        loaders: What may shuffle, by name.
        signatures: Names of arguments that are often given without them, by name of the call.
        chains: Whether its datasets have shuffle() and batch() with the meaning of tf.data.
        buffered: Whether such a shuffle() has a buffer; else it shuffles everything.
        fit_shuffles: Whether its models shuffle arrays in fit().

    Example:
        >>> Library(package="mydp", calls=(DpCall(names=("compute_epsilon",)),)).package
        'mydp'
    """

    package: str
    calls: tuple[DpCall, ...] = ()
    engines: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()
    loaders: dict[str, Loader] = field(default_factory=dict)
    signatures: dict[str, tuple[str, ...]] = field(default_factory=dict)
    chains: bool = False
    buffered: bool = False
    fit_shuffles: bool = False


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of ``epsilometer shuffle`` that source code may tell.

    Attributes:
        name: The option.
        placeholder: What stands for it where it is unknown.
        arguments: Names of arguments that give it.
        constants: Further names of constants that do.
        whole: Whether it is a whole number.
    """

    name: str
    placeholder: str
    arguments: tuple[str, ...]
    constants: tuple[str, ...] = ()
    whole: bool = False


class Catalogue:
    """All libraries together, by what the checks ask of them."""

    def __init__(self, libraries: list[Library], options: list[Option]) -> None:
        self.options = {option.name: option for option in options}
        self.arguments = {name: each for each in options for name in each.arguments}
        self.constants = self.arguments | {
            name: each for each in options for name in each.constants
        }
        self.calls: dict[Known, list[DpCall]] = defaultdict(list)
        self.samplers: set[Known] = set()
        self.loaders: dict[Known, Loader] = {}
        self.signatures: dict[Known, tuple[str, ...]] = {}
        for library in libraries:
            package = library.package
            for call in library.calls:
                for name in call.names:
                    self.calls[package, name].append(call)
            self.samplers |= {(package, name) for name in library.samplers}
            self.loaders |= {(package, name): each for name, each in library.loaders.items()}
            self.signatures |= {(package, name): each for name, each in library.signatures.items()}
        self.private = {each.package for each in libraries if each.calls or each.engines}
        self.chains = {each.package for each in libraries if each.chains}
        self.buffered = {each.package for each in libraries if each.buffered}
        self.fit_shuffles = {each.package for each in libraries if each.fit_shuffles}
        self.engines = {method for each in libraries for method in each.engines}
        self.engine_packages = {each.package for each in libraries if each.engines}
        # What a star import is taken to bring. Elsewhere the import itself says it.
        self.names = {*self.calls, *self.samplers, *self.loaders, *self.signatures}
        # A file that has none of these words cannot have a finding.
        self.markers = (*sorted(self.private), *sorted(self.engines))


@cache
def load_catalogue() -> Catalogue:
    """Return all libraries, those of other packages too; read once per process."""
    text = files("epsilometer.lint").joinpath("libraries.toml").read_text("utf-8")
    read: dict[str, Any] = tomllib.loads(text)
    libraries = msgspec.convert(read["library"], list[Library])
    for entry in entry_points(group=_GROUP):
        library = entry.load()
        if not isinstance(library, Library):
            raise InvalidArgument(
                f"Expected a Library of epsilometer.lint in {entry.value!r}, which another package "
                f"registers as {entry.name!r}, got {type(library).__name__}."
            )
        libraries.append(library)
    return Catalogue(libraries, msgspec.convert(read["option"], list[Option]))
