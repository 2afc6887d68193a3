"""Show that padding to the longest record of a batch mixes records.

    python reproductions/found/pad_to_longest.py                                # a network like it
    python reproductions/found/pad_to_longest.py char-lstm-classification.py    # Opacus's example

The example's ``padded_collate`` pads every name to the longest of its batch, and its network reads
the padding: each gradient depends on the longest record. Clipping bounds what a record adds, not
what it changes in others. The example's own encoder, network and ``padded_collate`` are used.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus_step import CLIP_NORM, NOISE_MULTIPLIER, make_private, release_gradients
from torch.nn.utils.rnn import pad_sequence

import epsilometer as em

NAMES = (
    *("Abadi", "Chen", "Garcia", "Ivanov", "Kim", "Li", "Müller", "Nakamura", "Novak", "O'Neill"),
    *("Papadopoulos-Konstantinidis", "Rossi", "Schmidt", "Silva", "Smith", "Wu"),
)
LANGUAGES = 4


class AverageNet(torch.nn.Module):
    """Embeds letters, averages over all positions, padding among them, and classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = torch.nn.Embedding(256, 16)
        self.out = torch.nn.Linear(16, LANGUAGES)

    def forward(self, names: Any) -> Any:
        """Return one score per language."""
        return self.out(self.letters(names).mean(dim=1))


def collate_longest(batch: Any) -> tuple[Any, Any]:
    """Pad to the longest record of the batch."""
    names = pad_sequence([name for name, _ in batch], batch_first=True)
    return names, torch.stack([label for _, label in batch])


def collate_fixed(batch: Any, length: int = 40) -> tuple[Any, Any]:
    """Pad to a length that is known beforehand."""
    padded = [torch.nn.functional.pad(name, (0, length - len(name))) for name, _ in batch]
    return torch.stack(padded), torch.stack([label for _, label in batch])


def encode_names() -> list[tuple[Any, Any]]:
    """Return names as tensors of their bytes, with labels."""
    return [
        (torch.tensor(list(name.encode())), torch.tensor(place % LANGUAGES))
        for place, name in enumerate(NAMES)
    ]


def audit_collating(model: Any, records: list[Any], collate: Any, *, steps: int = 8) -> em.Audit:
    """Replay a step of Opacus with one record removed or replaced, for every record."""
    model, optimizer, _ = make_private(model, records, batch_size=len(records), collate_fn=collate)
    criterion = torch.nn.CrossEntropyLoss()

    def take_step(batch: list[Any], rng: np.random.Generator) -> dict[str, Any]:
        inputs, labels = collate(batch)
        return release_gradients(
            model,
            optimizer,
            inputs,
            rng,
            compute_loss=lambda net, given: criterion(net(given), labels),
            scale=float(optimizer.expected_batch_size),
        )

    subject = em.Step(
        take_step,
        records,
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        steps=steps,
        records=len(records),
    )
    return em.audit(subject)


def read_example(path: Path) -> tuple[Any, list[Any], Any]:
    """Return network, records and collate function of Opacus's example, run from its own file."""
    example = runpy.run_path(str(path), run_name="example")
    encode = example["CharByteEncoder"]()
    records = [
        (encode(name), label) for name, (_, label) in zip(NAMES, encode_names(), strict=True)
    ]
    model = example["CharNNClassifier"](example["DPLSTM"], 64, 128, LANGUAGES)
    return model, records, example["padded_collate"]


def main() -> int:
    """Print what the checks say of padding to the longest, and to a fixed length."""
    torch.manual_seed(0)
    if sys.argv[1:]:
        model, records, collate = read_example(Path(sys.argv[1]))
    else:
        model, records, collate = AverageNet(), encode_names(), collate_longest
    audit = audit_collating(model, records, collate)
    sys.stdout.write(f"{audit.verdict}\n")
    finding = audit.conformance
    for check in finding.checks if finding is not None else ():
        sys.stdout.write(f"  {check.outcome}: {check.name} ({check.seen})\n")
    return audit.exit_code


if __name__ == "__main__":
    sys.exit(main())
