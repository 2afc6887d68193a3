"""Flower: canary clients inside the one federated run that is done anyway.

``audit_server_app`` wraps a ``ServerApp``; the app itself, its strategy and the ``ClientApp`` stay
as they are. It hands on a proxy of the ``Grid`` that answers for canary nodes and looks at the
weights as they cross.
"""

from epsilometer.conformance.round_sums import AccountedMean
from epsilometer.integrations.flower.apps import audit_server_app, audited_strategy
from epsilometer.integrations.flower.client_mod import canary_mod
from epsilometer.integrations.flower.grids import InProcessGrid, run_in_process

__all__ = [
    "AccountedMean",
    "InProcessGrid",
    "audit_server_app",
    "audited_strategy",
    "canary_mod",
    "run_in_process",
]
