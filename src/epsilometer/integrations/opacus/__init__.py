"""Opacus: is the ε it reports the ε of this loader, and does this optimiser keep it?"""

from epsilometer.integrations.opacus.audited_run import Audited, audited
from epsilometer.integrations.opacus.sampler_check import check

__all__ = ["Audited", "audited", "check"]
