"""Describe programs of the zoo: what each is, and what a tool is given to check.

``catalogue.csv`` lists them: id, title, what each breaks, and where it was seen.
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
    """A program that is known to be wrong, or right.

    Attributes:
        id: ``EPS-0001`` and so on; it never changes, and is never given twice.
        title: What the program does, in a few words.
        kind: ``step`` for one step of DP-SGD as a plain function, ``opacus`` for a training,
            ``flower`` for a federated run.
        make: Makes from a seed what a tool is given: for ``step`` an ``epsilometer.Step``, for
            ``opacus`` a ``Training`` that was made private and waits for its ``run``, for
            ``flower`` a ``FederatedRun`` with the apps of server and clients.
        code: The function or class to read.
        settings: What it sets beside, in words.
        breaks: What is wrong with it; empty for a right one.
        seen: Where it was seen; empty where that is not known.
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
        """The source of what is wrong with it, or unusual."""
        return _DECORATORS.sub("", inspect.getsource(self.code))


@cache
def read_catalogue() -> dict[str, dict[str, str]]:
    """Return title, ``breaks`` and ``seen`` of all programs, by their ids."""
    text = files("epsilometer.zoo").joinpath("catalogue.csv").read_text("utf-8")
    return {row.pop("id"): row for row in csv.DictReader(text.splitlines())}


class Register:
    """Collect the programs of one kind: each is the right program with one part changed.

    ``@register("EPS-0022", part="draw")`` stands before the function or class that takes the place
    of that part.

    Args:
        kind: Kind of the programs.
        make: Makes what a tool is given, called as ``make(seed, **parts)``.

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
        """Return what registers a function or class as the program of an id.

        Args:
            id: As in the catalogue.
            part: What of the right program it replaces; ``make`` where it makes all of it.
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
