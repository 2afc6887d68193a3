"""Audit a Hugging Face Trainer, with full fine-tuning or LoRA, and write its model card."""

from typing import TYPE_CHECKING, Any

from epsilometer._extras import needs
from epsilometer.integrations.huggingface.saved_model import SavedModel

if TYPE_CHECKING:
    from epsilometer.integrations.huggingface.callback import PrivacyAudit
    from epsilometer.integrations.huggingface.hub import push_audit

__all__ = ["PrivacyAudit", "SavedModel", "push_audit"]


def __getattr__(name: str) -> Any:
    """Import other names on first use: settings name ``SavedModel`` without them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "push_audit":
        with needs("huggingface_hub", extra="huggingface"):
            from epsilometer.integrations.huggingface.hub import push_audit
        return push_audit
    with needs("transformers", extra="huggingface"), needs("torch", extra="torch"):
        from epsilometer.integrations.huggingface.callback import PrivacyAudit
    return PrivacyAudit
