"""Describe libraries to the checks, as data: DP calls, samplers, loaders and trainers.

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
    """Describe calls that assume Poisson sampling, and when they do.

    Attributes:
        names: Names of the calls.
        kind: ``accountant`` computes, or calibrates noise to, an ε of Poisson sampling; ``hedged``
            also prints another ε; ``training`` is DP training without its own ε.
        needs_method: Only if the module also calls a method of this name.
        needs_argument: Only if this argument is given.
        needs_word: Only if some name of the module contains this word.
        unless_argument: Not if this argument is True.
        unless_anywhere: Not if some call of the module has this argument as False.
        unless_attribute: Not if the module reads an attribute of this name.
        counts: Whether it counts the steps of a run, which a resumed run must restore.
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
    """Describe a call that shuffles if one of its arguments has a certain value.

    Attributes:
        argument: The argument that decides.
        position: Its position; None if it is keyword-only.
        default: Its default.
        shuffles_when: The value that shuffles.
        data: The argument that holds the records.
        needs: The argument without which it makes no loader.
        unless: Arguments that override the decision, such as a sampler.
        ordered: Whether records come in the order of the data if they are not shuffled.
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
    """Describe a class that makes the loader of the training data itself, and shuffles.

    Attributes:
        data: The argument that holds the training data.
        makes: Methods that make the loader: a subclass that overrides one makes its own.
    """

    data: str
    makes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Library:
    """Describe one library to the checks.

    Attributes:
        package: Its top package.
        aliases: Further top packages with the same names.
        calls: Calls that assume Poisson sampling.
        engines: Methods that replace a loader by one with Poisson sampling, as ``make_private``.
        samplers: Samplers that draw batches by coin tosses: if one is used, shuffled loaders are
            assumed to serve other purposes.
        strategies: Attributes whose value draws batches by coin tosses.
        loaders: Calls that may shuffle, by name.
        trainers: Classes that make their own loader, by name.
        modules: Classes whose ``train_dataloader`` feeds the training, as in Lightning.
        prepares: Methods that make a new loader.
        passes: Calls that pass on the batches of one of their arguments.
        signatures: Names of arguments that are often positional, by name of the call.
        chains: Whether its datasets have shuffle() and batch() as in tf.data.
        buffered: Whether such a shuffle() has a buffer; otherwise it shuffles everything.
        fit_shuffles: Whether its models shuffle arrays in fit().
        mixers: Layers that mix the records of a batch.
        refuses_mixers_unless: The argument that, set to False, makes its engine accept mixers.
        parts: Calls that take a part of a dataset.
        selectors: Calls that keep the best model by a validation score, with arguments of which one
            must be given.
        settings: Calls that hold settings of a trainer.
        resumes: Arguments that resume a run.
        restores: Methods that restore the books of an accountant.
        books: Classes whose objects hold the books of a run, in addition to ``calls`` that count.
        rounds: Classes whose ``fit`` runs once per round, and gets the weights of the previous one.
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
        """Whether it is a library for differential privacy."""
        return bool(self.calls or self.engines)


@dataclass(frozen=True, kw_only=True)
class Option:
    """Describe an option of ``epsilometer shuffle`` that source code may provide.

    Attributes:
        name: The option.
        placeholder: Text to use if it is unknown.
        arguments: Names of arguments that provide it.
        constants: Further names of constants that do.
        whole: Whether it is a whole number.
    """

    name: str
    placeholder: str
    arguments: tuple[str, ...]
    constants: tuple[str, ...] = ()
    whole: bool = False


class Catalogue:
    """Index all libraries by what the checks need."""

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
        # Assumed names of a star import. Other imports list theirs.
        self.names = {
            *self.calls,
            *self.samplers,
            *self.loaders,
            *self.signatures,
            *self.trainers,
            *self.mixers,
        }
        # A project without any of these words claims no ε that lint knows.
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
    """Return all libraries, including those of other packages; read once per process."""
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
