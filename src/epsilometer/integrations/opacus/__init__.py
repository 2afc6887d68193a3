"""Audit Opacus: is the reported ε that of the loader, and does the optimiser keep it?"""

from epsilometer._extras import needs

with needs("opacus", extra="opacus"), needs("torch", extra="torch"):
    from epsilometer.integrations.opacus.audited_run import Audited, audited
    from epsilometer.integrations.opacus.private_setup import make_private
    from epsilometer.integrations.opacus.replay import replay
    from epsilometer.integrations.opacus.sampler_check import check
    from epsilometer.integrations.opacus.setups import replay_setup

__all__ = ["Audited", "audited", "check", "make_private", "replay", "replay_setup"]
