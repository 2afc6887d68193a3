"""Describe libraries to the checks: their DP calls, samplers, loaders and trainers, all as data.

``facts/`` has one file per library that comes with the project. Another package adds its own by an
entry point of the group ``epsilometer.lint`` that names a :class:`Library`.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Literal, TypeAlias

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
            prints another ε beside it; ``training`` is DP training without its own ε.
        needs_method: Only where the module also calls a method of this name.
        needs_argument: Only where this argument is given.
        needs_word: Only where some name of the module contains this word.
        unless_argument: Not where this argument is True.
        unless_anywhere: Not where some call of the module has this argument as False.
        unless_attribute: Not where the module reads an attribute of this name.
        counts: Whether it counts the steps of a run, which a run that is resumed must restore.
    """

    names: tuple[str, ...]
    kind: Kind = "accountant"
    needs_method: str = ""
    needs_argument: str = ""
    needs_word: str = ""
    unless_argument: str = ""
    unless_anywhere: str = ""
    unless_attribute: str = ""
    counts: bool = False


@dataclass(frozen=True, kw_only=True)
class Loader:
    """A call that shuffles if one of its arguments has a certain value.

    Attributes:
        argument: The argument that decides.
        position: Where it stands without its name; None if it needs it.
        default: What it is when left out.
        shuffles_when: The value that shuffles.
        data: The argument that holds the records.
        needs: The argument without which it makes no loader.
        unless: Arguments that take the decision away, as a sampler does.
        ordered: Whether records come in the order of the data where they are not shuffled.
    """

    argument: str
    position: int | None = None
    default: bool = False
    shuffles_when: bool = True
    data: str = ""
    needs: str = ""
    unless: tuple[str, ...] = ()
    ordered: bool = False


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A class that makes the loader of the training data itself, and shuffles.

    Attributes:
        data: The argument that holds the training data.
        makes: Methods that make the loader: a subclass that overrides one decides by itself.
    """

    data: str
    makes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Library:
    """What the checks know of one library.

    Attributes:
        package: Its top package.
        aliases: Further top packages with the same names.
        calls: What assumes Poisson sampling.
        engines: Methods that replace a loader by one that samples by Poisson, as ``make_private``.
        samplers: What draws batches by coins: where one is used, shuffled loaders are taken to
            serve other ends.
        strategies: Attributes whose value draws batches by coins.
        loaders: What may shuffle, by name.
        trainers: What makes its own loader, by name.
        modules: Classes whose ``train_dataloader`` feeds the training, as those of Lightning.
        prepares: Methods that make a new loader.
        passes: Calls that hand on the batches of one of their arguments.
        signatures: Names of arguments that are often given without them, by name of the call.
        chains: Whether its datasets have shuffle() and batch() with the meaning of tf.data.
        buffered: Whether such a shuffle() has a buffer; else it shuffles everything.
        fit_shuffles: Whether its models shuffle arrays in fit().
        mixers: Layers that mix the records of a batch.
        refuses_mixers_unless: The argument that, set to False, makes its engine accept mixers.
        parts: What takes a part of a dataset.
        selectors: What keeps the best model by a validation score: the call, with the arguments one
            of which must be given.
        settings: Calls that hold settings of a trainer.
        resumes: Arguments that resume a run.
        restores: Methods that restore the books of an accountant.
        books: Classes whose objects hold the books of a run, beside those of ``calls`` that count.
        rounds: Classes whose ``fit`` runs once per round, and gets the weights of the one before.
        clients: Whether it protects clients, so that batches of records do not matter.

    Example:
        >>> Library(package="mydp", calls=(DpCall(names=("compute_epsilon",)),)).package
        'mydp'
    """

    package: str
    aliases: tuple[str, ...] = ()
    calls: tuple[DpCall, ...] = ()
    engines: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    loaders: dict[str, Loader] = field(default_factory=dict)
    trainers: dict[str, Trainer] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    prepares: tuple[str, ...] = ()
    passes: dict[str, str] = field(default_factory=dict)
    signatures: dict[str, tuple[str, ...]] = field(default_factory=dict)
    chains: bool = False
    buffered: bool = False
    fit_shuffles: bool = False
    mixers: tuple[str, ...] = ()
    refuses_mixers_unless: str = ""
    parts: tuple[str, ...] = ()
    selectors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    resumes: tuple[str, ...] = ()
    restores: tuple[str, ...] = ()
    books: tuple[str, ...] = ()
    rounds: tuple[str, ...] = ()
    clients: bool = False

    @property
    def private(self) -> bool:
        """Whether it is a library of differential privacy."""
        return bool(self.calls or self.engines)


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
        self.trainers: dict[Known, Trainer] = {}
        self.signatures: dict[Known, tuple[str, ...]] = {}
        self.selectors: dict[Known, tuple[str, ...]] = {}
        self.passes: dict[Known, str] = {}
        self.mixers: set[Known] = set()
        self.modules: set[Known] = set()
        self.parts: set[Known] = set()
        self.settings: set[Known] = set()
        self.books: set[Known] = set()
        self.rounds: set[Known] = set()
        for library in libraries:
            for package in (library.package, *library.aliases):
                self._add(package, library)
        self.private = _list_packages(each for each in libraries if each.private)
        self.chains = _list_packages(each for each in libraries if each.chains)
        self.clients = _list_packages(each for each in libraries if each.clients)
        self.buffered = _list_packages(each for each in libraries if each.buffered)
        self.fit_shuffles = _list_packages(each for each in libraries if each.fit_shuffles)
        self.engine_packages = _list_packages(each for each in libraries if each.engines)
        self.prepare_packages = _list_packages(each for each in libraries if each.prepares)
        self.engines = {method for each in libraries for method in each.engines}
        self.prepares = {method for each in libraries for method in each.prepares}
        self.strategies = {name for each in libraries for name in each.strategies}
        self.resumes = {name for each in libraries for name in each.resumes}
        self.restores = {name for each in libraries for name in each.restores}
        self.makes = {name for each in self.trainers.values() for name in each.makes}
        self.strict = {each.refuses_mixers_unless for each in libraries} - {""}
        # What a star import is taken to bring. Elsewhere the import itself says it.
        self.names = {
            *self.calls,
            *self.samplers,
            *self.loaders,
            *self.signatures,
            *self.trainers,
            *self.mixers,
        }
        # A project that has none of these words promises no ε that we know of.
        self.markers = (*sorted(self.private), *sorted(self.engines))

    def _add(self, package: str, library: Library) -> None:
        for call in library.calls:
            for name in call.names:
                self.calls[package, name].append(call)
        self.samplers |= {(package, name) for name in library.samplers}
        self.loaders |= {(package, name): each for name, each in library.loaders.items()}
        self.trainers |= {(package, name): each for name, each in library.trainers.items()}
        self.signatures |= {(package, name): each for name, each in library.signatures.items()}
        self.selectors |= {(package, name): each for name, each in library.selectors.items()}
        self.passes |= {(package, name): each for name, each in library.passes.items()}
        self.mixers |= {(package, name) for name in library.mixers}
        self.modules |= {(package, name) for name in library.modules}
        self.parts |= {(package, name) for name in library.parts}
        self.settings |= {(package, name) for name in library.settings}
        self.rounds |= {(package, name) for name in library.rounds}
        counting = (name for call in library.calls if call.counts for name in call.names)
        self.books |= {(package, name) for name in (*library.books, *counting)}


def _list_packages(libraries: Iterable[Library]) -> set[str]:
    return {package for each in libraries for package in (each.package, *each.aliases)}


@cache
def load_catalogue() -> Catalogue:
    """Return all libraries, those of other packages too; read once per process."""
    here = files("epsilometer.lint")
    facts = sorted(here.joinpath("facts").iterdir(), key=lambda each: each.name)
    libraries = [
        msgspec.convert(tomllib.loads(each.read_text("utf-8")), Library)
        for each in facts
        if each.name.endswith(".toml")
    ]
    for entry in entry_points(group=_GROUP):
        library = entry.load()
        if not isinstance(library, Library):
            raise InvalidArgument(
                f"Expected a Library of epsilometer.lint in {entry.value!r}, which another package "
                f"registers as {entry.name!r}, got {type(library).__name__}."
            )
        libraries.append(library)
    options = tomllib.loads(here.joinpath("options.toml").read_text("utf-8"))["option"]
    return Catalogue(libraries, msgspec.convert(options, list[Option]))
