"""Find what calls do for privacy: account, sample, shuffle, train."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from epsilometer.lint.flow import Flow, Value
from epsilometer.lint.libraries import DpCall, Kind, Known, Loader, Trainer
from epsilometer.lint.module import FUNCTIONS, Call, Function, Module, split_words, write_name
from epsilometer.lint.project import Symbol
from epsilometer.lint.purposes import changes_weights, is_partial_step, is_training_call

RATES = ("sampling_probability", "sampling_prob", "sample_rate", "q", "sampling_rate")
RATES_SET = frozenset(RATES)
_KINDS: tuple[Kind, ...] = ("hedged", "accountant", "training")  # of one call: the first that is
_COIN_SAMPLER = re.compile(r"poisson\w*(sampl|batch|load)|(sampl|batch|load)\w*poisson", re.I)
_NO_SAMPLER = re.compile(r"event|account|compute|epsilon|eps_|^mu_|mechanism", re.I)
_UNIFORM = ("random", "rand", "uniform", "random_sample", "uniform_", "random_uniform")
BOOKS = re.compile(r"account|engine|privacy")
_BELOW = ("lt", "le", "less", "less_equal")  # methods and functions that compare
_OWN_ACCOUNTANT = re.compile(r"eps|rdp|privacy|account|sigma|noise|budget|moment", re.I)
_NOISES = {"sigma", "noise_multiplier", "noise", "noise_scale", "noise_std"}
_LOOPS = (ast.For, ast.AsyncFor)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CHOOSES = re.compile(r"sampl|batch|poisson|lot", re.I)
_INDICES = {"nonzero", "flatnonzero", "argwhere", "where", "choice", "batch", "indices"}


@dataclass(frozen=True, eq=False)
class Accountant:
    """Hold a call that assumes Poisson sampling.

    Attributes:
        module: The module that contains it.
        call: The call.
        name: What is called there.
        kind: As of :class:`~epsilometer.lint.libraries.DpCall`.
        own: Whether the project wrote it itself.
        counts: Whether it counts the steps of a run.
    """

    module: Module
    call: Call
    name: str
    kind: Kind
    own: bool = False
    counts: bool = False

    @property
    def node(self) -> ast.Call:
        """Its place in the code."""
        return self.call.node


@dataclass(frozen=True, eq=False)
class Source:
    """Hold a call that makes a loader or a sampler."""

    module: Module
    call: Call
    loader: Loader


@dataclass(frozen=True, eq=False)
class Training:
    """Hold a call that makes a trainer, which makes its own loader.

    Attributes:
        module: The module that contains it.
        call: The call.
        trainer: Facts about the class.
        overridden: Whether the project overrides the method that makes the loader.
    """

    module: Module
    call: Call
    trainer: Trainer
    overridden: bool


@dataclass(frozen=True, eq=False)
class Loop:
    """Hold a loop.

    Attributes:
        module: The module that contains it.
        node: The loop.
        trains: Whether it contains a training step.
        updates: Whether this is more than gradients of a part of a batch.
    """

    module: Module
    node: ast.For | ast.AsyncFor
    trains: bool
    updates: bool


class Roles:
    """Find the roles of the calls of one module."""

    def __init__(self, module: Module, flow: Flow) -> None:
        self.module, self._flow = module, flow
        self._catalogue = module.catalogue

    def evaluate(self, call: Call, name: str) -> object:
        """Return the value of an argument; None if it is missing or unknown."""
        argument = call.find_argument(name)
        return None if argument is None else self._flow.evaluate(Value(argument, self.module))

    @cached_property
    def accountants(self) -> list[Accountant]:
        """Calls that assume Poisson sampling, in the order of the source."""
        found = []
        for call in self.module.calls:
            known = [each for name in call.known for each in self._catalogue.calls.get(name, ())]
            valid = [each for each in known if self._applies(call, each)]
            kinds = {each.kind for each in valid}
            kind = next((each for each in _KINDS if each in kinds), None)
            if kind is not None and not self._is_restored(call):
                counts = any(each.counts for each in valid)
                made = Accountant(self.module, call, call.method, kind, counts=counts)
                found.append(made)
            elif not known and self._is_own_accountant(call):
                found.append(Accountant(self.module, call, call.method, "accountant", own=True))
        return found

    def _applies(self, call: Call, known: DpCall) -> bool:  # noqa: PLR0911
        """Tell whether the conditions of a call hold here."""
        module = self.module
        if known.needs_method:
            return known.needs_method in self._methods
        if known.needs_argument and known.needs_argument not in call.arguments:
            return False
        if known.needs_word and not any(known.needs_word in word for word in module.words):
            return False
        if known.kind != "training" and any(self.evaluate(call, name) == 1 for name in RATES):
            return False  # a rate of 1 claims no amplification: every sampler keeps that ε
        if known.unless_argument:
            return self.evaluate(call, known.unless_argument) is not True
        if known.unless_anywhere:
            return known.unless_anywhere not in self._switched_off
        return not known.unless_attribute or known.unless_attribute not in module.attributes

    def _is_restored(self, call: Call) -> bool:
        """Tell whether books are made again by a function that loads what was saved.

        They do not say how batches are drawn, and half of a package may use such a function.
        """
        around = self.module.find_function(call.node)
        return id(around) in self._restoring and isinstance(around, FUNCTIONS)

    @cached_property
    def _restoring(self) -> set[int]:
        """Return the functions that load a state into an engine or an accountant."""
        return {
            id(around)
            for call in self.module.calls
            if call.method == "load_state_dict"
            and BOOKS.search(write_name(call.function).lower())
            and isinstance(around := self.module.find_function(call.node), FUNCTIONS)
            and split_words(around.name)[:1] in (["load"], ["restore"], ["deserialize"])
        }

    def _is_own_accountant(self, call: Call) -> bool:
        """Recognise a project function that turns a rate and noise into ε, or back."""
        if not _OWN_ACCOUNTANT.search(call.method):
            return False
        symbol = self._flow.project.find_called(self.module, call)
        if symbol is None and self._is_imported(call):  # from a copy that is not available
            return bool(RATES_SET & set(call.arguments) and _NOISES & set(call.arguments))
        if symbol is not None and isinstance(symbol.node, FUNCTIONS):
            names = {each.arg for each in (*symbol.node.args.args, *symbol.node.args.kwonlyargs)}
        else:
            return False
        rated = bool(names & {*RATES, "prob"})
        aims = {"delta", "target_delta"} & names and {"eps", "epsilon", "target_epsilon"} & names
        inside = self.module.find_function(call.node)
        return rated and bool(names & _NOISES or aims) and not _is_accounting(inside)

    def _is_imported(self, call: Call) -> bool:
        """Tell whether a call is of a name imported from an unknown library."""
        first = write_name(call.function).partition(".")[0]
        return first in self.module.names.imports and not call.packages & self._catalogue.private

    # Computed once for the whole module: a file may have thousands of accountants.

    @cached_property
    def _methods(self) -> set[str]:
        return {call.method for call in self.module.calls}

    @cached_property
    def _switched_off(self) -> set[str]:
        """Return the names of arguments that are False in some call."""
        return {
            name
            for call in self.module.calls
            for name, value in call.arguments.items()
            if isinstance(value, ast.Constant) and value.value is False
        }

    @cached_property
    def engines(self) -> list[Call]:
        """Calls of ``make_private``, which replaces the loader unless told not to."""
        methods, packages = self._catalogue.engines, self._catalogue.engine_packages
        functions = {name for name in methods if name in self.module.names.defined}
        if functions and not packages & self.module.names.packages:
            return []
        return [
            call
            for call in self.module.calls
            if call.method in methods and call.packages <= packages
        ]

    @cached_property
    def optimizer_steps(self) -> list[Call]:
        """Calls of ``optimizer.step()``."""
        return [
            call
            for call in self.module.calls
            if call.method == "step"
            and isinstance(call.function, ast.Attribute)
            and not _is_bookkeeping(call)
            and "account" not in write_name(call.function).lower()
        ]

    @cached_property
    def weight_updates(self) -> list[Call]:
        """Calls that change the weights: of an optimizer, or of a function named for that."""
        steps = {id(call) for call in self.optimizer_steps}
        return [
            call
            for call in self.module.calls
            if id(call) in steps
            or (call.method != "step" and changes_weights(call.method) and not _is_record(call))
        ]

    @cached_property
    def book_steps(self) -> list[Call]:
        """Calls of ``accountant.step(...)``, which book a step of training."""
        return [
            call
            for call in self.module.calls
            if call.method == "step"
            and ("account" in write_name(call.function).lower() or RATES_SET & set(call.arguments))
        ]

    @property
    def reads_epsilon(self) -> bool:
        """Tell whether the module reads the ε of an engine or an accountant."""
        return bool({"get_epsilon", "get_privacy_spent"} & self.module.attributes)

    @cached_property
    def coins(self) -> list[ast.AST]:
        """Where the module draws batches by Poisson sampling."""
        drawn: list[ast.AST] = [
            call.node for call in self.module.calls if self._draws_by_coins(call)
        ]
        drawn += [node for node in self.module.nodes if self._is_coin(node)]
        return drawn

    def _draws_by_coins(self, call: Call) -> bool:
        module = self.module
        functions = [call.function]
        if isinstance(call.function, ast.Attribute):  # DPDataLoader.from_data_loader(...)
            functions.append(call.function.value)
        if any(module.names.is_one_of(each, self._catalogue.samplers) for each in functions):
            return True
        if call.method in ("bernoulli", "binomial", "Bernoulli"):
            return self._makes_batches(call.node)
        if _COIN_SAMPLER.search(call.method) and not _NO_SAMPLER.search(call.method):
            return True
        return call.method not in self._catalogue.engines and any(
            _COIN_SAMPLER.search(name) and self.evaluate(call, name) is True
            for name in call.arguments
        )

    def _makes_batches(self, node: ast.AST) -> bool:
        """Tell whether coin tosses at a node choose records, rather than mask words or units."""
        around = [each for each in self.module.walk_up(node) if isinstance(each, _NAMED)]
        if any(_CHOOSES.search(each.name) for each in around):
            return True
        inside = around[0] if around else next(
            (each for each in self.module.walk_up(node) if isinstance(each, ast.stmt)), node
        )  # fmt: skip
        return any(
            isinstance(each, ast.Attribute | ast.Name)
            and (each.attr if isinstance(each, ast.Attribute) else each.id) in _INDICES
            for each in ast.walk(inside)
        )

    def _is_coin(self, node: ast.AST) -> bool:
        """Recognise ``rng.random(n) < q`` and similar expressions, or the strategy of a plan."""
        match node:
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[_]):
                return self._is_uniform(left) or self._is_coin_of_record(node, left)
            case ast.Compare(
                left=left,
                ops=[ast.Gt() | ast.GtE()],
                comparators=[ast.BinOp(left=ast.Constant(value=1), op=ast.Sub())],
            ):
                return self._is_uniform(left)
            case ast.Compare(ops=[ast.Gt() | ast.GtE()], comparators=[right]):
                return self._is_uniform(right)
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=args) if name in _BELOW:
                return any(self._is_uniform(each) for each in (of, *args[:1]))
            case ast.Attribute(attr=name):
                return name in self._catalogue.strategies
        return False

    def _is_uniform(self, expression: ast.expr) -> bool:
        """Recognise many uniform draws at once, also behind a name."""
        if isinstance(expression, ast.Name):
            made = self.module.bindings.find_once(expression)
            expression = expression if made is None else made
        match expression:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args):
                return name in _UNIFORM and (bool(args) or bool(expression.keywords))
        return False

    def _is_coin_of_record(self, node: ast.AST, left: ast.expr) -> bool:
        """Recognise ``[i for i in range(n) if random.random() < q]``."""
        match left:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _UNIFORM:
                parent = self.module.parents.get(id(node))
                return isinstance(parent, ast.comprehension)
        return False

    @cached_property
    def sources(self) -> list[Source]:
        """Calls that make loaders and samplers."""
        loaders = self._catalogue.loaders
        return [
            Source(self.module, call, loaders[name])
            for call in self.module.calls
            for name in sorted(call.known & set(loaders) or self._find_inherited(call))
            if name in loaders
        ]

    def _find_inherited(self, call: Call) -> set[Known]:
        """Return the library classes that a project class instantiates.

        If it has its own constructor, this is in ``super().__init__()``. A class that overrides how
        it draws is another sampler.
        """
        project, module = self._flow.project, self.module
        owner: tuple[Module, ast.ClassDef] | None = None
        match call.function:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
                around = module.find_class(call.node)
                owner = None if around is None else (module, around)
            case _:
                symbol = project.resolve(module, call.function)
                if symbol is not None and isinstance(symbol.node, ast.ClassDef):
                    made = project.find_method(symbol.module, symbol.node, "__init__")
                    owner = (symbol.module, symbol.node) if made is None else None
        if owner is None or project.find_method(*owner, "__iter__") is not None:
            return set()
        return set(project.find_bases(*owner))

    @cached_property
    def trainings(self) -> list[Training]:
        """Calls that make trainers with their own loader."""
        return [made for call in self.module.calls for made in self._read_training(call)]

    def _read_training(self, call: Call) -> Iterator[Training]:
        trainers = self._catalogue.trainers
        for name in sorted(call.known):
            if name in trainers:
                yield Training(self.module, call, trainers[name], overridden=False)
                return
        symbol = self._flow.project.resolve(self.module, call.function)
        if symbol is None or not isinstance(symbol.node, ast.ClassDef):
            return
        project = self._flow.project
        for base in sorted(project.find_bases(symbol.module, symbol.node)):
            if base in trainers:
                found = trainers[base]
                made = [
                    project.find_method(symbol.module, symbol.node, each) for each in found.makes
                ]
                overridden = any(each is not None and not _returns_inherited(each) for each in made)
                yield Training(self.module, call, found, overridden)
                return

    @cached_property
    def loops(self) -> list[Loop]:
        """Loops, with whether they train. If a loop trains, those around it do, too."""
        training: set[int] = set()
        updating: set[int] = set()
        for call in self.module.calls:
            if not is_training_call(call.method) or _is_bookkeeping(call):
                continue
            kinds = [training] if is_partial_step(call.method) else [training, updating]
            for parent in self.module.walk_up(call.node):
                known = all(id(parent) in kind for kind in kinds)
                if isinstance(parent, (*FUNCTIONS, ast.Lambda)) or known:
                    break
                if isinstance(parent, _LOOPS):
                    for kind in kinds:
                        kind.add(id(parent))
        return [
            Loop(self.module, node, id(node) in training, id(node) in updating)
            for node in self.module.nodes
            if isinstance(node, _LOOPS)
        ]

    @cached_property
    def loop_of(self) -> dict[int, Loop]:
        """The loops, by the ids of their nodes."""
        return {id(loop.node): loop for loop in self.loops}


def _returns_inherited(method: Symbol) -> bool:
    """Tell whether a method returns the result of the method that it overrides."""
    module = method.module
    returned = module.returns.get(id(method.node), [])
    for value in returned:
        made = module.bindings.find_once(value) if isinstance(value, ast.Name) else value
        match made:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name)):
                if name == method.name:
                    continue
        return False
    return bool(returned)


def _is_bookkeeping(call: Call) -> bool:
    """Tell whether a ``step()`` is that of a scheduler or a profiler, not of training."""
    receiver = write_name(call.function).lower()
    others = ("sched", "profil", "pbar", "meter", "metric", "progress", "confusion", "accuracy")
    return any(word in receiver for word in others)


def _is_record(call: Call) -> bool:
    """Tell whether ``update`` is that of a dictionary, a metric or a bar, not of an optimizer."""
    if call.method != "update" or not isinstance(call.function, ast.Attribute):
        return _is_bookkeeping(call)
    return not re.search(r"opt|tx", write_name(call.function.value).lower())


def _is_accounting(scope: object) -> bool:
    return isinstance(scope, Function) and bool(_OWN_ACCOUNTANT.search(scope.name))
