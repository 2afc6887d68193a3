"""Read a saved model for an audit from a settings file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epsilometer._extras import needs
from epsilometer.audits.text.canary_counts import load_counts
from epsilometer.audits.text.causal_model import CausalModel
from epsilometer.audits.text.measuring import MEASUREMENTS, load_measured
from epsilometer.audits.text.planting import load_planted
from epsilometer.errors import InvalidArgument


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """Load a model from ``save_pretrained``, and the private folder of its canaries.

    Nothing is downloaded, and no code of the model's own is run.

    Attributes:
        folder: The folder ``out`` of ``plant_texts``.
        model: The trained model, with its tokenizer; or a PEFT adapter.
        reference: The model before training; None to use the measurements of ``PrivacyAudit``, if
            any.
    """

    folder: Path
    model: Path
    reference: Path | None = None

    def load(self) -> dict[str, Any]:
        """Load canaries, model and reference."""
        before: Any = None
        if self.reference is not None:
            before = _load_model(self.reference, completions=False)
        elif (self.folder / MEASUREMENTS).exists():
            before = load_measured(self.folder, "reference")
        return {
            "model": _load_model(self.model),
            "planted": load_planted(self.folder),
            "reference": before,
            "counts": load_counts(self.folder),
        }


def _load_model(path: Path, *, completions: bool = True) -> CausalModel:
    with needs("transformers", extra="huggingface"):
        from transformers import AutoModelForCausalLM, AutoTokenizer
    more = {"local_files_only": True}
    module, found = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **more)
    names = ("missing_keys", "unexpected_keys", "mismatched_keys")
    if wrong := sum(len(found[name]) for name in names):
        raise InvalidArgument(
            f"Expected all weights of a model in {str(path)!r}, found {wrong:,} missing or left "
            "over: what was trained would not be measured. Write it by the model's "
            "save_pretrained."
        )
    tokenizer = AutoTokenizer.from_pretrained(path, **more)
    return CausalModel(module, tokenizer, completions=completions)
