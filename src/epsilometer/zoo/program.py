"""Describe a program of the zoo: what it is, and what a tool is given to check."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from epsilometer.audits.step.subject import Step
from epsilometer.conformance.replay import StepFunction
from epsilometer.zoo.network import make_batch

Kind: TypeAlias = Literal["step", "opacus"]

C = 1.0
SIGMA = 1.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that is known to be wrong, or right.

    Attributes:
        id: ``EPS-0001`` and so on; it never changes, and is never given twice.
        title: What the program does, in a few words.
        kind: ``step`` for one step of DP-SGD as a plain function, ``opacus`` for a training.
        make: Makes from a seed what a tool is given: for ``step`` an ``epsilometer.Step``, for
            ``opacus`` a ``Training`` that was made private and waits for its ``run``.
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
        return inspect.getsource(self.code)


def describe_step(
    id: str,  # noqa: A002 - the field's name
    title: str,
    step: StepFunction,
    *,
    clip_norm: float = C,
    noise_multiplier: float = SIGMA,
    steady: bool | None = None,
    breaks: str = "",
    seen: str = "",
) -> Program:
    """Return the program of one step that is a plain function.

    Args:
        id: As of :class:`Program`.
        title: As of :class:`Program`.
        step: Called as ``step(batch, rng)``; returns the noisy sum of clipped gradients.
        clip_norm: C that is accounted for.
        noise_multiplier: σ that is accounted for.
        steady: As of ``epsilometer.Step``.
        breaks: As of :class:`Program`.
        seen: As of :class:`Program`.
    """

    def make(_: int) -> Step:
        return Step(
            deepcopy(step),  # one that keeps state begins anew
            make_batch(),
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            steady=steady,
        )

    changed = getattr(step, "changed", step)
    code = changed if inspect.isfunction(changed) else type(changed)
    return Program(id=id, title=title, kind="step", make=make, code=code, breaks=breaks, seen=seen)
