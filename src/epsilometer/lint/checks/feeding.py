"""Find what feeds a training loop: which loader, which engine, which trainer."""

import ast
from collections import defaultdict
from functools import cached_property

from epsilometer.lint.flow import Flow, Value
from epsilometer.lint.module import Call
from epsilometer.lint.programs import Programs
from epsilometer.lint.roles import Loop, Roles


class Feeding:
    """Which loops take batches from which calls."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    @cached_property
    def _traced(self) -> list[tuple[Loop, list[Value]]]:
        flow = self._programs.flow
        return [
            (loop, flow.trace(Value(loop.node.iter, loop.module)))
            for roles in self._programs.roles.values()
            for loop in roles.loops
        ]

    @cached_property
    def _by_source(self) -> dict[tuple[int, str], list[Loop]]:
        found: dict[tuple[int, str], list[Loop]] = defaultdict(list)
        for loop, values in self._traced:
            for value in values:
                found[identify(value)].append(loop)
        for roles in self._programs.roles.values():
            for call in roles.module.calls:
                if call.method == "next" and call.positional:
                    loops = self._list_around(roles, call)
                    value = Value(call.positional[0], roles.module)
                    for each in self._programs.flow.trace(value) if loops else []:
                        found[identify(each)] += loops
        return found

    @staticmethod
    def _list_around(roles: Roles, call: Call) -> list[Loop]:
        """Return the nearest loop around a call."""
        for parent in roles.module.walk_up(call.node):
            if id(parent) in roles.loop_of:
                return [roles.loop_of[id(parent)]]
        return []

    def list_loops(self, value: Value) -> list[Loop]:
        """Return the loops that take batches from where a value comes from."""
        return self._by_source.get(identify(value), [])

    def list_training_loops(self, value: Value) -> list[Loop]:
        """Return those of its loops that train."""
        return [loop for loop in self.list_loops(value) if loop.trains]


def identify(value: Value) -> tuple[int, str]:
    """Return what tells whether two values begin at the same place.

    Unknown names are the same if they are spelled the same in one module.
    """
    if isinstance(value.node, ast.Name):
        return id(value.module), value.node.id
    if isinstance(value.node, ast.Attribute):
        return id(value.module), ast.dump(value.node.value) + "." + value.node.attr
    return id(value.node), ""


def list_origins(flow: Flow, value: Value) -> set[tuple[int, str]]:
    """Return where a value may begin."""
    return {identify(each) for each in flow.trace(value)}
