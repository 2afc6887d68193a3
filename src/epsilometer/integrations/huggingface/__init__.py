"""Hugging Face: audit a run of a Trainer, in full or by LoRA, and write its model card."""

import importlib
from typing import TYPE_CHECKING, Any

from epsilometer._extras import needs
from epsilometer.integrations.huggingface.saved_model import SavedModel

if TYPE_CHECKING:
    from epsilometer.integrations.huggingface.callback import PrivacyAudit
    from epsilometer.integrations.huggingface.hub import push_audit

__all__ = ["PrivacyAudit", "SavedModel", "push_audit"]
_MODULES = {"PrivacyAudit": "callback", "push_audit": "hub"}


def __getattr__(name: str) -> Any:
    """Import the rest when it is asked for: settings name ``SavedModel`` without it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    wanted = ("transformers", "torch") if name == "PrivacyAudit" else ("huggingface_hub",) * 2
    with needs(wanted[0], extra="huggingface"), needs(wanted[1], extra="torch"):
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
