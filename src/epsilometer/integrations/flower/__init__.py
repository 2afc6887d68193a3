"""Audit Flower: add canary clients to your normal federated run.

``audit_server_app`` wraps a ``ServerApp``; the app, its strategy and the ``ClientApp`` do not
change. It passes on a proxy of the ``Grid`` that answers for canary nodes and reads the weights in
messages.
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
