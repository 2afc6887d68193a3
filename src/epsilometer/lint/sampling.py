"""Find what a module assumes about its batches, and how it draws them."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property

from epsilometer.lint.libraries import DpCall, Kind
from epsilometer.lint.module import Call, Module, Scope, split_words, write_name
from epsilometer.lint.rules import Severity

RATES = ("sampling_probability", "sampling_prob", "sample_rate", "q")
# What an accountant's kind says; the first kind speaks loudest about a node.
_SAYS: dict[Kind, str] = {
    "accountant": "assumes Poisson sampling.",
    "hedged": "prints two ε: the one that assumes Poisson sampling fails.",
    "training": "trains with DP; accountants for it assume Poisson sampling.",
}
_KINDS: tuple[Kind, ...] = ("hedged", "accountant", "training")  # of one call: the first that is
_COIN_SAMPLER = re.compile(r"poisson\w*(sampl|batch|load)|(sampl|batch|load)\w*poisson", re.I)
_NO_SAMPLER = re.compile(r"event|account|compute|epsilon|eps_|^mu_", re.I)
_TEST = re.compile(r"^Test|Tests?(Case|Base)?$")
_UNIFORM = ("random", "rand", "uniform", "random_sample")
_OTHER_ENDS = {"val", "valloader", "valset", "dev", "heldout", "vanilla", "attack", "calibration"}
_OTHER_STARTS = ("test", "eval", "valid", "holdout", "public", "baseline", "nonpriv", "nondp",
                 "nodp", "pretrain", "shadow")  # fmt: skip


@dataclass(frozen=True)
class Accountant:
    """A call that assumes Poisson sampling.

    Attributes:
        node: Where it stands.
        name: What is called there.
        kind: As of :class:`~epsilometer.lint.libraries.DpCall`.
    """

    node: ast.Call
    name: str
    kind: Kind


class Sampling:
    """The accountants, engines and samplers of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._catalogue = module.catalogue

    @cached_property
    def accountants(self) -> list[Accountant]:
        """Calls that assume Poisson sampling, in the order of the source."""
        accountants = []
        for call in self.module.calls:
            known = [each for name in call.known for each in self._catalogue.calls.get(name, ())]
            kinds = {each.kind for each in known if self._applies(call, each)}
            accountants += [
                Accountant(call.node, call.method, kind) for kind in _KINDS if kind in kinds
            ][:1]
        return accountants

    def _applies(self, call: Call, known: DpCall) -> bool:
        """Tell whether the conditions of a call hold here."""
        if known.needs_method:
            return known.needs_method in self._methods
        if known.needs_argument and known.needs_argument not in call.arguments:
            return False
        if known.kind != "training" and any(
            self.module.read_value(call, name) == 1 for name in RATES
        ):
            return False  # a rate of 1 claims no amplification: every sampler keeps that ε
        if known.unless_argument:
            return self.module.read_value(call, known.unless_argument) is not True
        if known.unless_anywhere:
            return known.unless_anywhere not in self._switched_off
        return not known.unless_attribute or known.unless_attribute not in self._attributes

    # Of the whole module, and so asked once: a file may have thousands of accountants.

    @cached_property
    def _methods(self) -> set[str]:
        return {call.method for call in self.module.calls}

    @cached_property
    def _attributes(self) -> set[str]:
        return {node.attr for node in self.module.nodes if isinstance(node, ast.Attribute)}

    @cached_property
    def _switched_off(self) -> set[str]:
        """Return the names of arguments that are False in some call."""
        return {
            name
            for call in self.module.calls
            for name in call.arguments
            if self.module.read_value(call, name) is False
        }

    @cached_property
    def engines(self) -> list[Call]:
        """Calls of ``make_private``, which replaces the loader unless told not to."""
        methods, packages = self._catalogue.engines, self._catalogue.engine_packages
        functions = {node.name for node in self.module.nodes if isinstance(node, ast.FunctionDef)}
        if "make_private" in functions and not packages & self.module.names.list_packages():
            return []
        return [
            call
            for call in self.module.calls
            if call.method in methods and call.packages <= packages
        ]

    @property
    def reads_epsilon(self) -> bool:
        """Tell whether the module asks an engine or an accountant for its ε."""
        return bool({"get_epsilon", "get_privacy_spent"} & self._attributes)

    @cached_property
    def by_coins(self) -> bool:
        """Tell whether the module draws batches by Poisson sampling somewhere."""
        return any(self._draws_by_coins(call) for call in self.module.calls) or any(
            self._is_coin(node) for node in self.module.nodes
        )

    def _draws_by_coins(self, call: Call) -> bool:
        functions = [call.function]
        if isinstance(call.function, ast.Attribute):  # DPDataLoader.from_data_loader(...)
            functions.append(call.function.value)
        if any(self.module.names.is_one_of(each, self._catalogue.samplers) for each in functions):
            return True
        if call.method in ("bernoulli", "binomial"):
            return True
        if _COIN_SAMPLER.search(call.method) and not _NO_SAMPLER.search(call.method):
            return True
        return call.method not in self._catalogue.engines and any(
            _COIN_SAMPLER.search(name) and self.module.read_value(call, name) is True
            for name in call.arguments
        )

    @staticmethod
    def _is_coin(node: ast.AST) -> bool:
        """Recognise ``rng.random(n) < q``, or the strategy of a plan of JAX-Privacy."""
        match node:
            case ast.Compare(left=ast.Call(func=ast.Attribute(attr=name), args=args), ops=[op]):
                return name in _UNIFORM and bool(args) and isinstance(op, ast.Lt | ast.LtE)
            case ast.Attribute(attr="batch_selection_strategy"):
                return True
        return False

    def find_nearest(self, node: ast.AST) -> Accountant | None:
        """Return the accountant that speaks loudest about a node: near it, and with an ε."""
        if self.by_coins or not self.accountants:
            return None
        scope = self.module.find_scope(node)
        together = [self._loudest[own] for own in (None, scope) if own in self._loudest]
        everywhere = self._loudest.values()
        return self.accountants[min(together if scope and together else everywhere)[1]]

    @cached_property
    def _loudest(self) -> dict[Scope, tuple[int, int]]:
        """Of each scope, the rank of its loudest accountant, 0 the loudest, and its number."""
        ranks = list(_SAYS)
        loudest: dict[Scope, tuple[int, int]] = {}
        for number, each in enumerate(self.accountants):
            scope, rank = self.module.find_scope(each.node), (ranks.index(each.kind), number)
            loudest[scope] = min(loudest.get(scope, rank), rank)
        return loudest

    def judge(self, accountant: Accountant, node: ast.AST) -> tuple[Severity, str]:
        """Return how grave a mistake is beside an accountant, and what that assumes, in words.

        It is an error only if an ε that does not hold is computed where the node runs.
        """
        together = self.module.runs_together(node, {self.module.find_scope(accountant.node)})
        place = f"{accountant.name} (line {accountant.node.lineno})"
        apart = "" if together else ", in another function,"
        sure = together and accountant.kind == "accountant"
        return "error" if sure else "warning", f"{place}{apart} {_SAYS[accountant.kind]}"

    def is_in_test(self, node: ast.AST) -> bool:
        """Tell whether a node is in a test function or a test class."""
        for parent in self.module.walk_up(node):
            match parent:
                case ast.FunctionDef(name=name) if name.startswith("test"):
                    return True
                case ast.ClassDef(name=name) if _TEST.search(name):
                    return True
        return False

    def serves_other_ends(self, node: ast.AST, *names: str) -> bool:
        """Tell whether names around a node say that it does not feed private training."""
        return any(_is_other_end(name) for name in (*names, *self._list_names_around(node)))

    def _list_names_around(self, node: ast.AST) -> list[str]:
        names = [self.module.find_target(node)]
        child = node
        for parent in self.module.walk_up(node):
            match parent:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.append(name)
                case ast.keyword(arg=str(name)):
                    names.append(name)
                case ast.Dict(keys=keys, values=values):
                    beside = zip(keys, values, strict=True)
                    names += [_word_key(key) for key, value in beside if value is child]
            child = parent
        return names


def _word_key(key: ast.expr | None) -> str:
    """Return a key of a dictionary in words."""
    match key:
        case ast.Constant(value=str(value)):
            return value
        case None:
            return ""
    return write_name(key)


def _is_other_end(name: str) -> bool:
    """Recognise ``test_loader``, ``x_val``, ``non_private``; but not ``train_and_evaluate``."""
    parts = split_words(name)
    if not parts:
        return False
    for word, following in zip(parts, [*parts[1:], ""], strict=True):
        if word in ("non", "no") and following in ("private", "dp", "priv"):
            return True
    other = any(part in _OTHER_ENDS or part.startswith(_OTHER_STARTS) for part in parts)
    trains = any(part.startswith("train") for part in parts)
    return other and (not trains or parts[0] == "test")
