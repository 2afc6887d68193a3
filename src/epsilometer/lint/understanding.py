"""Say what was understood of each file: its libraries, accountants and samplers."""

import ast

from epsilometer.lint.chains import find_shuffles
from epsilometer.lint.checks.permutations import list_cuts
from epsilometer.lint.flow import UNKNOWN, Value
from epsilometer.lint.programs import Programs
from epsilometer.lint.roles import Roles, Source
from epsilometer.lint.rules import KEEPS, POISSON, Understood

_MOST = 20  # accountants or samplers of one file that are named


def describe_files(programs: Programs) -> list[Understood]:
    """Return what was understood of every file that has to do with privacy or with batches.

    Files of a project without accountant or engine are left out: nothing was checked in them.
    """
    if not programs.private and not _list_imported(programs):
        return []
    found = []
    for roles in programs.roles.values():
        module = roles.module
        libraries = tuple(sorted(module.names.packages & module.catalogue.private))
        accountants = tuple(f"{each.name} (line {each.node.lineno})" for each in roles.accountants)
        samplers = tuple(dict.fromkeys(_list_samplers(programs, roles)))
        if libraries or accountants or samplers:
            found.append(
                Understood(
                    path=module.path,
                    libraries=libraries,
                    accountants=accountants[:_MOST],
                    samplers=samplers[:_MOST],
                )
            )
    return found


def _list_imported(programs: Programs) -> bool:
    return any(
        roles.module.names.packages & roles.module.catalogue.private
        for roles in programs.roles.values()
    )


def _list_samplers(programs: Programs, roles: Roles) -> list[str]:
    found = [f"{POISSON} (line {_line(node)})" for node in roles.coins]
    for call in roles.engines:
        off = roles.evaluate(call, "poisson_sampling") is False
        how = KEEPS if off else POISSON
        found.append(f"{call.method}: {how} (line {call.node.lineno})")
    for source in roles.sources:
        how = _describe_source(programs, source)
        found.append(f"{source.call.method}: {how} (line {source.call.node.lineno})")
    for training in roles.trainings:
        how = "a loader of the project's own" if training.overridden else "shuffled"
        found.append(f"{training.call.method}: {how} (line {training.call.node.lineno})")
    for cut in list_cuts(programs, roles):
        how = "slices in order" if cut.rule_id == "SHUF009" else "permutation: shuffled"
        found.append(f"{how} (line {_line(cut.node)})")
    for shuffle in find_shuffles(roles.module, programs.flow):
        found.append(f"shuffle(): shuffled (line {_line(shuffle.node)})")
    return found + _list_fits(programs, roles)


def _list_fits(programs: Programs, roles: Roles) -> list[str]:
    """Return the calls of ``fit`` with a batch size, by which Keras batches arrays itself."""
    module = roles.module
    if not module.names.packages & module.catalogue.fit_shuffles:
        return []
    found = []
    for call in module.calls:
        if call.method == "fit" and call.find_argument("batch_size", position=2) is not None:
            option = call.find_argument("shuffle", position=8)
            worth = True if option is None else programs.flow.evaluate(Value(option, module))
            how = {True: "shuffled", False: "in order"}.get(worth, "unknown")
            found.append(f"fit(): {how} (line {call.node.lineno})")
    return found


def _describe_source(programs: Programs, source: Source) -> str:
    loader, call = source.loader, source.call
    if any(name in call.arguments for name in loader.unless):
        return "by its sampler"
    option = call.find_argument(loader.argument, position=loader.position)
    values: set[object] = {loader.default}
    if option is not None:
        values = programs.flow.list_values(Value(option, source.module))
    elif call.unsure:
        values = {UNKNOWN}
    says = {
        "shuffled" if value is loader.shuffles_when else "in order" if loader.ordered else "other"
        for value in values
        if value is not UNKNOWN
    }
    return " or ".join(sorted(says)) if says and UNKNOWN not in values else "unknown"


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
