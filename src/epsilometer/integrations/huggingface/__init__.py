"""Hugging Face: audit a run of a Trainer, in full or by LoRA, and write its model card."""

from typing import TYPE_CHECKING, Any

from epsilometer._extras import needs
from epsilometer.integrations.huggingface.saved_model import SavedModel

if TYPE_CHECKING:
    from epsilometer.integrations.huggingface.callback import PrivacyAudit

__all__ = ["PrivacyAudit", "SavedModel"]


def __getattr__(name: str) -> Any:
    """Import the callback when it is asked for: settings name ``SavedModel`` without it."""
    if name != "PrivacyAudit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("transformers", extra="huggingface"), needs("torch", extra="torch"):
        from epsilometer.integrations.huggingface.callback import PrivacyAudit
    return PrivacyAudit
