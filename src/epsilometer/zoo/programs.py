"""List all programs of the zoo."""

from epsilometer.zoo.right import RIGHT
from epsilometer.zoo.wrong import WRONG

PROGRAMS = (*WRONG, *RIGHT)
