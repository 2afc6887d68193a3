"""Describe programs of the zoo: what each does, and what a tool receives to check.

``catalogue.csv`` lists them: id, title, what each breaks, and where it was found.
"""

import csv
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias, TypeVar

Kind: TypeAlias = Literal["step", "opacus", "flower"]
Code = TypeVar("Code", bound=Callable[..., Any])
_DECORATORS = re.compile(r"\A\s*@.*?^(?=def |class )", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Program:
    """Describe a program that is known to be wrong or right.

    Attributes:
        id: ``EPS-0001`` etc.; it never changes and is never reused.
        title: What the program does, in a few words.
        kind: ``step`` for one step of DP-SGD as a plain function, ``opacus`` for a training,
            ``flower`` for a federated run.
        make: Makes a tool's input from a seed: for ``step`` an ``epsilometer.Step``, for
            ``opacus`` a ``Training`` that was made private and waits for its ``run``, for
            ``flower`` a ``FederatedRun`` with the apps of server and clients.
        code: The function or class to read.
        settings: Its other settings, in words.
        breaks: What is wrong with it; empty for a right program.
        seen: Where it was found; empty if unknown.
    """

    id: str
    title: str
    kind: Kind
    make: Callable[[int], Any]
    code: Any
    settings: str = ""
    breaks: str = ""
    seen: str = ""

    @property
    def right(self) -> bool:
        """Whether it does what is accounted for."""
        return not self.breaks

    @property
    def source(self) -> str:
        """The source of its wrong or unusual part."""
        return _DECORATORS.sub("", inspect.getsource(self.code))


@cache
def read_catalogue() -> dict[str, dict[str, str]]:
    """Return title, ``breaks`` and ``seen`` of all programs, by their ids."""
    text = files("epsilometer.zoo").joinpath("catalogue.csv").read_text("utf-8")
    return {row.pop("id"): row for row in csv.DictReader(text.splitlines())}


class Register:
    """Collect the programs of one kind: each is the right program with one part changed.

    ``@register("EPS-0022", part="draw")`` decorates the function or class that replaces this part.

    Args:
        kind: Kind of the programs.
        make: Makes a tool's input, called as ``make(seed, **parts)``.

    Attributes:
        programs: Those registered so far.
    """

    def __init__(self, kind: Kind, make: Callable[..., Any]) -> None:
        self._kind, self._make = kind, make
        self.programs: list[Program] = []

    def __call__(
        self,
        id: str,  # noqa: A002 - the field's name
        *,
        part: str,
        **settings: Any,
    ) -> Callable[[Code], Code]:
        """Return a decorator that registers a function or class as the program of an id.

        Args:
            id: As in the catalogue.
            part: Part of the right program that it replaces; ``make`` to replace all of it.
            settings: What else differs from the right program.
        """

        def add(code: Code) -> Code:
            whole = part == "make"
            parts = settings if whole else {**settings, part: code}
            make = code if whole else self._make
            words = [f"{name}={value!r}" for name, value in settings.items() if not callable(value)]
            self.programs.append(
                Program(
                    id=id,
                    kind=self._kind,
                    make=lambda seed: make(seed, **parts),
                    code=code,
                    settings=", ".join(words),
                    **read_catalogue()[id],
                )
            )
            return code

        return add
