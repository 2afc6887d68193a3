"""Measure the normals that the installed torch draws in bfloat16, beside those of float32.

    python reproductions/found/bfloat16_noise.py            # 4,000,000 of them, on a CPU
    python reproductions/found/bfloat16_noise.py --cuda     # on a card

Noise is drawn as Opacus draws it, by ``torch.normal`` with the dtype of the gradients.
"""

import argparse
from dataclasses import dataclass

import torch

DRAWS = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What draws look like that should be standard normals."""

    largest: float
    deviation: float
    zeros: float  # share that is exactly 0
    beyond: float  # share beyond 3σ: 0.27 % of a normal
    impossible: float  # share of 1 + noise, redrawn, that exceeds all noise seen


def measure_draws(dtype: torch.dtype, device: str = "cpu", *, draws: int = DRAWS) -> Draws:
    """Draw standard normals of this dtype from seed 0, and describe them."""
    torch.manual_seed(0)
    drawn, again = (
        torch.normal(0.0, 1.0, size=(draws,), dtype=dtype, device=device) for _ in range(2)
    )
    with_record, drawn = (1 + again).double(), drawn.double()
    return Draws(
        largest=drawn.abs().max().item(),
        deviation=drawn.std().item(),
        zeros=(drawn == 0).double().mean().item(),
        beyond=(drawn.abs() > 3).double().mean().item(),
        impossible=(with_record > drawn.abs().max()).double().mean().item(),
    )


def main() -> None:
    """Print a line per dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", action="store_true", help="Draw on a card.")
    parser.add_argument("--draws", type=int, default=DRAWS, help="How many.")
    given = parser.parse_args()
    device = "cuda" if given.cuda else "cpu"
    where = torch.cuda.get_device_name() if given.cuda else torch.backends.cpu.get_cpu_capability()
    print(f"torch {torch.__version__} on {device} ({where}), {given.draws:,} draws")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found = measure_draws(dtype, device, draws=given.draws)
        print(
            f"{dtype}: largest {found.largest:.3f}, standard deviation {found.deviation:.4f}, "
            f"zeros {found.zeros:.2%}, beyond 3σ {found.beyond:.2%}, "
            f"1 + noise beyond the largest {found.impossible:.4%}"
        )


if __name__ == "__main__":
    main()
