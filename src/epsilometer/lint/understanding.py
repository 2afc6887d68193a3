"""Report what was recognised in each file: libraries, accountants and samplers."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from epsilometer.lint.chains import find_shuffles
from epsilometer.lint.checks.loaders import list_frames, takes_everything
from epsilometer.lint.checks.permutations import list_cuts
from epsilometer.lint.checks.pipelines import is_fit_of_arrays, list_ordered
from epsilometer.lint.flow import UNKNOWN, Value
from epsilometer.lint.module import Call, Module, write_name
from epsilometer.lint.programs import Programs
from epsilometer.lint.purposes import is_in_test, serves_other_ends
from epsilometer.lint.roles import Roles, Source
from epsilometer.lint.rules import KEEPS, NO_SAMPLER, POISSON, Understood

_MOST = 20  # accountants or samplers of one file to name
_UNKNOWN, _OTHER = "unknown", "neither shuffled nor Poisson"
_ELSEWHERE = ("by its sampler", "a loader of the project's own", _UNKNOWN, _OTHER)


@dataclass(frozen=True, eq=False)
class _Sampler:
    """Describe what draws batches.

    Attributes:
        module: The module that contains it.
        node: What draws.
        name: Name of the call; empty for coin tosses.
        how: How batches are drawn.
        data: The name of the records.
    """

    module: Module
    node: ast.AST
    name: str
    how: str
    data: str = ""

    @property
    def text(self) -> str:
        """Its name and place."""
        named = f"{self.name}: {self.how}" if self.name else self.how
        return f"{named} ({self.module.point_at(self.node)})"

    @property
    def understood(self) -> bool:
        """Whether it may feed the training, and is known."""
        if self.how in (POISSON, KEEPS):
            return True
        return self.how not in _ELSEWHERE and not serves_other_ends(
            self.module, self.node, self.data
        )


def describe_files(programs: Programs) -> list[Understood]:
    """Return what was understood of every file related to privacy or batches.

    Files of a project without accountant or engine are left out: nothing was checked in them.
    """
    if not programs.private and not _list_imported(programs):
        return []
    every = {key: list(_list_samplers(programs, each)) for key, each in programs.roles.items()}
    drawn = any(each.understood for samplers in every.values() for each in samplers)
    found = []
    for key, roles in programs.roles.items():
        module = roles.module
        libraries = tuple(sorted(module.names.packages & module.catalogue.private))
        accountants = tuple(
            f"{each.name} ({module.point_at(each.node)})" for each in roles.accountants
        )
        samplers = tuple(dict.fromkeys(each.text for each in every[key]))
        if libraries or accountants or samplers:
            found.append(
                Understood(
                    path=module.path,
                    libraries=libraries,
                    accountants=accountants[:_MOST],
                    samplers=samplers[:_MOST],
                    blind=NO_SAMPLER if not drawn and _promises(roles) else "",
                )
            )
    return found


def _promises(roles: Roles) -> bool:
    """Tell whether a file computes an ε for some training with a known library."""
    if any(not is_in_test(roles.module, call.node) for call in roles.engines):
        return True
    return any(
        each.kind != "training" and not each.own and not is_in_test(roles.module, each.node)
        for each in roles.accountants
    )


def _list_imported(programs: Programs) -> bool:
    return any(
        roles.module.names.packages & roles.module.catalogue.private
        for roles in programs.roles.values()
    )


def _list_samplers(programs: Programs, roles: Roles) -> Iterator[_Sampler]:
    module = roles.module
    for node in roles.coins:
        yield _Sampler(module, node, "", POISSON)
    for call in roles.engines:
        yield _Sampler(module, call.node, call.method, _describe_engine(programs, roles, call))
    for source in roles.sources:
        data = write_name(source.call.find_argument(source.loader.data or "dataset", position=0))
        how = _describe_source(programs, source)
        yield _Sampler(module, source.call.node, source.call.method, how, data)
    for training in roles.trainings:
        how = _ELSEWHERE[1] if training.overridden else "shuffled"
        yield _Sampler(module, training.call.node, training.call.method, how)
    for cut in list_cuts(programs, roles):
        ordered = cut.rule_id == "SHUF009"
        name, how = ("slices", "in order") if ordered else ("permutation", "shuffled")
        yield _Sampler(module, cut.node, name, how, cut.name)
    for shuffle in find_shuffles(module, programs.flow):
        yield _Sampler(module, shuffle.node, "shuffle()", "shuffled", " ".join(shuffle.names))
    for node, name in list_ordered(programs, roles):
        yield _Sampler(module, node, "batch()", "in order", name)
    yield from _list_fits(programs, module)


def _list_fits(programs: Programs, module: Module) -> Iterator[_Sampler]:
    """Yield the calls of ``fit`` with arrays, which Keras batches itself."""
    if not module.names.packages & module.catalogue.fit_shuffles:
        return
    for call in module.calls:
        sized = call.find_argument("batch_size", position=2) is not None
        if call.method == "fit" and (sized or is_fit_of_arrays(call)):
            option = call.find_argument("shuffle", position=8)
            worth = True if option is None else programs.flow.evaluate(Value(option, module))
            how = {True: "shuffled", False: "in order"}.get(worth, _UNKNOWN)
            yield _Sampler(module, call.node, "fit()", how)


def _describe_engine(programs: Programs, roles: Roles, call: Call) -> str:
    option = call.find_argument("poisson_sampling")
    if option is None:
        return _UNKNOWN if call.unsure else POISSON
    values = programs.flow.list_values(Value(option, roles.module))
    return KEEPS if False in values else POISSON if values == {True} else _UNKNOWN


def _describe_source(programs: Programs, source: Source) -> str:
    loader, call = source.loader, source.call
    if any(name in call.arguments for name in loader.unless):
        return _ELSEWHERE[0]
    if takes_everything(source):
        return "all records"
    option = call.find_argument(loader.argument, position=loader.position)
    values: set[object] = {loader.default}
    if option is not None:
        values = set()
        for frame in list_frames(programs, source):
            values |= programs.flow.list_values(Value(option, source.module, frame))
    elif call.unsure:
        values = {UNKNOWN}
    says = {
        "shuffled" if value == loader.shuffles_when else "in order" if loader.ordered else _OTHER
        for value in values
        if value is not UNKNOWN
    }
    return " or ".join(sorted(says)) if says and UNKNOWN not in values else _UNKNOWN
