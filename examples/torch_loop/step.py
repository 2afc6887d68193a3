"""Check one step of a DP-SGD loop that is written in plain PyTorch, without Opacus.

pip install 'epsilometer[torch]'
python examples/torch_loop/step.py                # as it should be
python examples/torch_loop/step.py --clip-mean    # clips the mean of the batch, not records
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import epsilometer as em

CLIP, SIGMA = 1.0, 1.1


class PrivateStep:
    """Take one step: clip per-record gradients, sum them and add noise."""

    def __init__(self, module: nn.Module, *, clip_mean: bool = False) -> None:
        self.module, self.clip_mean = module, clip_mean

    def __call__(self, batch: tuple, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return the noisy sum by parameter: what the optimiser would divide and apply."""
        features, labels = (torch.as_tensor(part) for part in batch)
        noise = torch.Generator().manual_seed(int(rng.integers(2**63)))
        params = {name: value.detach() for name, value in self.module.named_parameters()}

        def measure_loss(params, x, y):
            logits = functional_call(self.module, params, (x[None],))
            return nn.functional.cross_entropy(logits, y[None])

        each = vmap(grad(measure_loss), in_dims=(None, 0, 0))(params, features, labels)
        if self.clip_mean:  # the mistake: one large gradient dominates the mean
            each = {name: part.sum(0, keepdim=True) for name, part in each.items()}
        norms = sum(part.flatten(1).square().sum(1) for part in each.values()).sqrt()
        factors = (CLIP / norms.clamp(min=CLIP)).clamp(max=1.0)
        if self.clip_mean:
            factors = factors * len(features)
        return {
            name: torch.einsum("n,n...->...", factors, part)
            + SIGMA * CLIP * torch.randn(part.shape[1:], generator=noise)
            for name, part in each.items()
        }


def check(*, clip_mean: bool = False) -> em.Audit:
    """Return whether the step does what is accounted for."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2))
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(12, 10)).astype(np.float32), rng.integers(2, size=12)
    step = PrivateStep(module, clip_mean=clip_mean)
    return em.audit(em.Step(step, batch, clip_norm=CLIP, noise_multiplier=SIGMA, records=4))


def main() -> None:
    """Check as asked, print the audit, and exit as ``epsilometer`` does."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clip-mean", action="store_true", help="Clip the mean of the batch.")
    audit = check(**vars(parser.parse_args()))
    print(audit)
    raise SystemExit(audit.exit_code)


if __name__ == "__main__":
    main()
