"""Read a saved model for an audit that a file describes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epsilometer._extras import needs
from epsilometer.audits.text.canary_counts import load_counts
from epsilometer.audits.text.causal_model import CausalModel
from epsilometer.audits.text.planting import load_planted


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A model that ``save_pretrained`` wrote, and the private folder of its canaries.

    Nothing is downloaded, and no code of the model's own is run.

    Attributes:
        folder: Where ``plant_texts(out=…)`` wrote.
        model: The trained model, with its tokenizer; or a PEFT adapter.
        reference: The model before training; None for none.
    """

    folder: Path
    model: Path
    reference: Path | None = None

    def load(self) -> dict[str, Any]:
        """Load canaries, model and reference."""
        before = None
        if self.reference is not None:
            before = _load_model(self.reference, completions=False)
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
    module = AutoModelForCausalLM.from_pretrained(path, **more)
    tokenizer = AutoTokenizer.from_pretrained(path, **more)
    return CausalModel(module, tokenizer, completions=completions)
