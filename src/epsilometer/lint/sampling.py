"""What a module assumes about its batches, and how it draws them."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from epsilometer.lint.findings import Severity
from epsilometer.lint.libraries import (
    DP_TRAINING,
    HEDGED,
    POISSON_ACCOUNTANTS,
    POISSON_SAMPLERS,
)
from epsilometer.lint.module import Call, Module, text, words
from epsilometer.lint.values import Scope

MAKE_PRIVATE = ("make_private", "make_private_with_epsilon")
_RATES = ("sampling_probability", "sampling_prob", "sample_rate", "q")
_COIN_SAMPLER = re.compile(r"poisson\w*(sampl|batch|load)|(sampl|batch|load)\w*poisson", re.I)
_NO_SAMPLER = re.compile(r"event|account|compute|epsilon|eps_|^mu_", re.I)
_TEST = re.compile(r"Tests?(Case|Base)?$")
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
        kind: ``accountant`` computes an ε, ``hedged`` prints another ε beside it, ``training`` is
            DP training without an ε in sight.
    """

    node: ast.Call
    name: str
    kind: Literal["accountant", "hedged", "training"]


class Sampling:
    """The accountants, engines and samplers of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module

    @cached_property
    def accountants(self) -> list[Accountant]:
        """Calls that assume Poisson sampling, in the order of the source."""
        found = []
        for call in self.module.calls:
            kind = self._kind(call)
            if kind is not None:
                found.append(Accountant(call.node, call.method, kind))
        return found

    def _kind(self, call: Call) -> Literal["accountant", "hedged", "training"] | None:
        if self._is_old_engine(call) or self._is_subsampled_gaussian(call):
            return "accountant"
        if call.known & POISSON_ACCOUNTANTS and not self._is_excused(call):
            return "hedged" if call.known & HEDGED else "accountant"
        return "training" if call.known & DP_TRAINING else None

    def _is_old_engine(self, call: Call) -> bool:
        """Opacus before 1.0: ``PrivacyEngine(...).attach(optimizer)`` left the loader alone."""
        return ("opacus", "PrivacyEngine") in call.known and self._attaches

    def _is_subsampled_gaussian(self, call: Call) -> bool:
        if ("dp_accounting", "from_gaussian_mechanism") not in call.known:
            return False
        return "sampling_prob" in call.arguments and not self._is_unsampled(call)

    def _is_unsampled(self, call: Call) -> bool:
        """Whether the rate is 1: no amplification is claimed, and every sampler keeps that ε."""
        return any(self.module.value(call, name) == 1 for name in _RATES)

    def _is_excused(self, call: Call) -> bool:
        if self._is_unsampled(call):
            return True
        if ("opacus", "GaussianAccountant") in call.known:
            return self._accounts_without_poisson
        if ("jax_privacy", "DPKerasConfig") in call.known:
            return self.module.value(call, "poisson_sampling_in_fit") is True
        has_event = call.method.endswith("_event")
        return (
            not has_event
            and "jax_privacy" in {root for root, _ in call.known}
            and self._has_fixed_batches
        )

    # Of the whole module, and so asked once: a file may have thousands of accountants.

    @cached_property
    def _attaches(self) -> bool:
        return any(call.method == "attach" for call in self.module.calls)

    @cached_property
    def _accounts_without_poisson(self) -> bool:
        return any(self.module.value(call, "poisson") is False for call in self.module.calls)

    @cached_property
    def _has_fixed_batches(self) -> bool:
        return any(
            isinstance(node, ast.Attribute) and node.attr == "FIXED_BATCH_SIZE"
            for node in self.module.nodes
        )

    @cached_property
    def engines(self) -> list[Call]:
        """Calls of Opacus' ``make_private``, which replaces the loader unless told not to."""
        own = "make_private" in {
            node.name for node in self.module.nodes if isinstance(node, ast.FunctionDef)
        }
        if own and "opacus" not in self.module.names.packages():
            return []
        return [
            call
            for call in self.module.calls
            if call.method in MAKE_PRIVATE and {root for root, _ in call.known} <= {"opacus"}
        ]

    @cached_property
    def reads_epsilon(self) -> bool:
        """Whether the module asks an engine or an accountant for its ε."""
        asks = ("get_epsilon", "get_privacy_spent")
        return any(
            isinstance(node, ast.Attribute) and node.attr in asks for node in self.module.nodes
        )

    @cached_property
    def by_coins(self) -> bool:
        """Whether the module draws batches by Poisson sampling somewhere."""
        return any(self._draws_by_coins(call) for call in self.module.calls) or any(
            self._is_coin(node) for node in self.module.nodes
        )

    def _draws_by_coins(self, call: Call) -> bool:
        functions = [call.function]
        if isinstance(call.function, ast.Attribute):  # DPDataLoader.from_data_loader(...)
            functions.append(call.function.value)
        if any(self.module.names.is_one_of(each, POISSON_SAMPLERS) for each in functions):
            return True
        if call.method in ("bernoulli", "binomial"):
            return True
        if _COIN_SAMPLER.search(call.method) and not _NO_SAMPLER.search(call.method):
            return True
        return call.method not in MAKE_PRIVATE and any(
            _COIN_SAMPLER.search(name) and self.module.value(call, name) is True
            for name in call.arguments
        )

    @staticmethod
    def _is_coin(node: ast.AST) -> bool:
        """``rng.random(n) < q``, or the strategy of a plan of JAX-Privacy."""
        match node:
            case ast.Compare(left=ast.Call(func=ast.Attribute(attr=name), args=args), ops=[op]):
                return name in _UNIFORM and bool(args) and isinstance(op, ast.Lt | ast.LtE)
            case ast.Attribute(attr="batch_selection_strategy"):
                return True
        return False

    def nearest(self, node: ast.AST) -> Accountant | None:
        """The accountant that speaks loudest about a node: together with it, and with an ε."""
        if self.by_coins or not self.accountants:
            return None
        scope = self.module.scope(node)
        together = [self._loudest[own] for own in (None, scope) if own in self._loudest]
        everywhere = self._loudest.values()
        return self.accountants[min(together if scope and together else everywhere)[1]]

    @cached_property
    def _loudest(self) -> dict[Scope, tuple[int, int]]:
        """Of each scope, how loud its loudest accountant is, least first, and its number."""
        ranks = ("accountant", "hedged", "training")
        loudest: dict[Scope, tuple[int, int]] = {}
        for number, each in enumerate(self.accountants):
            scope, rank = self.module.scope(each.node), (ranks.index(each.kind), number)
            loudest[scope] = min(loudest.get(scope, rank), rank)
        return loudest

    def severity(self, accountant: Accountant, node: ast.AST) -> Severity:
        """``error`` only if an ε that does not hold is computed where the node runs."""
        sure = accountant.kind == "accountant" and self.module.together(accountant.node, node)
        return "error" if sure else "warning"

    def said(self, accountant: Accountant, node: ast.AST) -> str:
        """What the accountant has to do with a node, in a sentence."""
        place = f"{accountant.name} (line {accountant.node.lineno})"
        apart = "" if self.module.together(accountant.node, node) else ", in another function,"
        match accountant.kind:
            case "accountant":
                return f"{place}{apart} assumes Poisson sampling."
            case "hedged":
                return f"{place}{apart} prints two ε: the one that assumes Poisson sampling fails."
            case "training":
                return f"{place}{apart} trains with DP; accountants for it assume Poisson sampling."

    def is_in_test(self, node: ast.AST) -> bool:
        """Whether a node is in a test function or a test class."""
        for parent in self.module.around(node):
            match parent:
                case ast.FunctionDef(name=name) if name.startswith("test"):
                    return True
                case ast.ClassDef(name=name) if name.startswith("Test") or _TEST.search(name):
                    return True
        return False

    def serves_other_ends(self, node: ast.AST, *names: str) -> bool:
        """Whether names around a node say that it does not feed private training."""
        return any(_is_other_end(name) for name in (*names, *self._names_around(node)))

    def _names_around(self, node: ast.AST) -> list[str]:
        found = [self.module.target(node)]
        child = node
        for parent in self.module.around(node):
            match parent:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.append(name)
                case ast.keyword(arg=str(name)):
                    found.append(name)
                case ast.Dict(keys=keys, values=values):
                    beside = zip(keys, values, strict=True)
                    found += [text_of(key) for key, value in beside if value is child]
            child = parent
        return found


def text_of(key: ast.expr | None) -> str:
    """A key of a dictionary in words."""
    match key:
        case ast.Constant(value=str(value)):
            return value
        case None:
            return ""
    return text(key)


def _is_other_end(name: str) -> bool:
    """``test_loader``, ``x_val``, ``non_private_baseline``; but not ``train_and_evaluate``."""
    parts = words(name)
    if not parts:
        return False
    for word, following in zip(parts, [*parts[1:], ""], strict=True):
        if word in ("non", "no") and following in ("private", "dp", "priv"):
            return True
    other = any(part in _OTHER_ENDS or part.startswith(_OTHER_STARTS) for part in parts)
    trains = any(part.startswith("train") for part in parts[1:]) or parts[0].startswith("train")
    return other and (not trains or parts[0] == "test")
