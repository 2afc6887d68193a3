"""What Flower has moved from one version to the next, found where the installed one has it."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from epsilometer._extras import needs

with needs("flwr", extra="flower"):
    from flwr.common.constant import SUPERLINK_NODE_ID


def _first_of(*names: str) -> Any:
    """The first of these modules that there is."""
    return import_module(next(name for name in names if find_spec(name) is not None))


Run = _first_of("flwr.supercore.run", "flwr.common.typing").Run
recorddict_compat = _first_of(
    "flwr.compat.common.recorddict_compat", "flwr.common.recorddict_compat"
)


def say_who_sends(run: int) -> None:
    """Messages of this process are the server's, which newer versions want to know."""
    if find_spec("flwr.supercore.task_identity") is not None:
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
        identity.task_id, identity.run_id, identity.node_id = 1, run, SUPERLINK_NODE_ID
