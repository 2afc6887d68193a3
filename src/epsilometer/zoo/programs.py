"""List all programs of the zoo."""

from importlib.util import find_spec

from epsilometer.zoo.program import Kind, Program
from epsilometer.zoo.right import RIGHT
from epsilometer.zoo.wrong import WRONG

STEPS = (*WRONG, *RIGHT)


def list_programs(kind: Kind | None = None) -> tuple[Program, ...]:
    """Return the programs of a kind; all that can run here by default.

    Without Opacus the programs that need it are left out, unless they are asked for.

    Example:
        >>> len(list_programs("step"))
        66
    """
    if kind == "step" or (kind is None and not has_opacus()):
        return STEPS
    from epsilometer.zoo.opacus_books import BOOKS, SAMPLING
    from epsilometer.zoo.opacus_clipping import CLIPPING
    from epsilometer.zoo.opacus_noise import NOISE
    from epsilometer.zoo.opacus_right import RIGHT_TRAININGS

    trainings = (*NOISE, *CLIPPING, *SAMPLING, *BOOKS, *RIGHT_TRAININGS)
    return trainings if kind == "opacus" else (*STEPS, *trainings)


def has_opacus() -> bool:
    """Whether Opacus is installed."""
    return find_spec("opacus") is not None
