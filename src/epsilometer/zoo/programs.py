"""List all programs of the zoo."""

from collections.abc import Iterable
from importlib.util import find_spec

from epsilometer._extras import needs
from epsilometer.zoo import right, step, wrong  # noqa: F401 - both register their programs
from epsilometer.zoo.program import Kind, Program


def list_programs(kind: Kind | None = None) -> tuple[Program, ...]:
    """Return the programs of a kind, sorted by id; by default all that can run here.

    Without Opacus or Flower, the programs that need it are left out, unless requested.

    Example:
        >>> {each.kind for each in list_programs("step")}
        {'step'}
    """
    if kind == "step":
        return _sort(step.program.programs)
    if kind is None:
        kinds: list[Kind] = [kind for kind in ("opacus", "flower") if has_library(kind)]
        return (*list_programs("step"), *(each for own in kinds for each in list_programs(own)))
    if kind == "flower":
        with needs("flwr", extra="flower"):
            from epsilometer.zoo import (  # noqa: F401
                flower_right,
                flower_rounds,
                flower_wrappers,
                flower_wrong,
            )

        return _sort(flower_rounds.program.programs)
    with needs("opacus", extra="opacus"), needs("torch", extra="torch"):
        from epsilometer.zoo import (  # noqa: F401 - each registers its programs
            opacus_books,
            opacus_clipping,
            opacus_noise,
            opacus_right,
            opacus_training,
        )

    return _sort(opacus_training.program.programs)


def _sort(programs: Iterable[Program]) -> tuple[Program, ...]:
    return tuple(sorted(programs, key=lambda program: program.id))


def has_library(kind: Kind) -> bool:
    """Tell whether the library that programs of a kind need is installed."""
    name = {"opacus": "opacus", "flower": "flwr"}.get(kind)
    return name is None or find_spec(name) is not None
