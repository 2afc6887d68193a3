"""Audit federated training by CANIFE, to compare with: single rounds, then composition."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from epsilometer import _validate
from epsilometer.accounting import rdp
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.errors import InvalidArgument
from epsilometer.networks.devices import as_tensor
from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.types import FloatArray


@dataclass(frozen=True, kw_only=True)
class CanifeAudit:
    """What CANIFE says of one training.

    Attributes:
        estimate: ε of the whole training, composed by Rényi accounting as its paper does.
        rounds: (round, ε of that round alone) pairs; infinite where no score was mistaken.
        noise: (noise multiplier, rounds) pairs, what was composed; ``accounting.pld`` composes
            them to less.
    """

    estimate: EpsilonEstimate
    rounds: tuple[tuple[int, float], ...]
    noise: tuple[tuple[float, int], ...]


def audit_canife(
    training: FederatedTraining,
    *,
    delta: float,
    every: int = 10,
    pool: int = 64,
    scores: int = 100,
    steps: int = 200,
    seed: int = 0,
) -> CanifeAudit:
    """CANIFE (Maddock, Sablayrolles, Stock 2023): a crafted example, tested in single rounds.

    Every so many rounds an example is crafted whose update is orthogonal to those of a pool of
    clients. It is then looked for in sums of a round, ``scores`` with it and as many without it,
    each with noise of its own and a cohort of clients that it was not crafted against; the inner
    product with its direction is the score. The ε of that round is that of the plain error rates
    at the threshold that errs least; the Gaussian mechanism with that ε has the noise of the
    round, and rounds are composed as if clients were sampled by Poisson. A round whose scores are
    told apart without an error has no finite ε, and takes the largest of the others.

    Guarantees: none. It is an estimate, small where scores are few: n of each kind show ln n at
        most in one round; and composition assumes a sampling that hardly anybody does.

    Args:
        training: What is trained; without canaries of any other kind.
        delta: δ.
        every: Rounds from one audited round to the next.
        pool: Clients whose updates the example is crafted against; as many others make cohorts.
        scores: Of an audited round with the example; as many without it.
        steps: Of crafting.
        seed: From which all randomness follows.
    """
    _validate.whole(1, every=every, pool=pool)
    _validate.whole(4, scores=scores)
    _validate.open_unit(delta=delta)
    if len(training.clients) <= training.cohort:
        raise InvalidArgument(
            f"Expected more clients than a cohort of {training.cohort}, got "
            f"{len(training.clients)}: composition is that of sampled cohorts."
        )
    trains, crafts = np.random.default_rng(seed).spawn(2)
    rounds = _Rounds(training, delta, every, pool, scores, steps, crafts)
    training.train(rng=trains, visit=rounds)
    noise = find_noise(rounds.found, delta=delta, every=every, rounds=training.rounds)
    epsilon = math.inf
    if all(multiplier > 0 for multiplier, _ in noise):
        rate = training.cohort / len(training.clients)
        epsilon = rdp.varied_poisson_epsilon(noise, sampling_rate=rate, delta=delta)
    return CanifeAudit(
        estimate=EpsilonEstimate(
            epsilon=epsilon,
            low=0.0,
            high=float("inf"),
            delta=delta,
            confidence=0.0,
            method="CANIFE: rounds by a crafted example, composed as Poisson sampling by RDP",
            direction="both",
            subject="federated training",
            role="reference",
            adjacency="add_remove",
            cites=("maddock2023",),
            caveats=("Neither a lower nor an upper bound: nothing is known of its error.",),
            basis=(
                ("rounds audited", len(rounds.found)),
                ("rounds", training.rounds),
                ("sampling rate", training.cohort / len(training.clients)),
            ),
        ),
        rounds=tuple(rounds.found),
        noise=noise,
    )


@dataclass(eq=False)
class _Rounds:
    """Visits rounds, and audits some of them."""

    training: FederatedTraining
    delta: float
    every: int
    pool: int
    scores: int
    steps: int
    rng: np.random.Generator
    found: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, number: int, clip: float, weights: Any) -> None:
        if number % self.every:
            return
        training, rng = self.training, self.rng
        picked = rng.permutation(len(training.clients))[: 2 * self.pool]
        designed, others = np.array_split(picked, 2)
        update = craft_update(
            training.module,
            weights,
            self._clipped(weights, designed, clip),
            example=as_tensor(training.clients[designed[0]][0], training.device)[0],
            clip=clip,
            learning_rate=training.learning_rate,
            steps=self.steps,
        )
        length = float(update.norm())
        # A score is linear in the sum: what each client adds to it is enough.
        towards = update / max(length, 1e-12) / clip
        parts = (self._clipped(weights, others, clip) @ towards).cpu().double().numpy()
        drawn = rng.choice(parts, (2, self.scores, training.cohort)).sum(2)
        noise = training.clip.value_noise(training.noise_multiplier)
        drawn += noise * rng.standard_normal(drawn.shape)
        present = drawn[0] + min(1.0, length / clip)
        self.found.append((number, compute_round_epsilon(present, drawn[1], delta=self.delta)))

    def _clipped(self, weights: Any, clients: Any, clip: float) -> Any:
        """Finite updates of some clients, ``(clients, size)``."""
        updates = self.training.updates(weights, clients, rng=self.rng)
        norms = updates.norm(dim=1, keepdim=True)
        return (updates * (clip / norms).clamp(max=1.0))[norms[:, 0].isfinite()]


def compute_round_epsilon(present: FloatArray, absent: FloatArray, *, delta: float) -> float:
    """ε of the plain error rates at the threshold that errs least.

    Of the two directions only those whose rate of errors is not 0 count; infinite if neither is.

    Example:
        >>> present, absent = np.repeat([0, 1], [1, 99]), np.repeat([0, 1], [99, 1])
        >>> round(compute_round_epsilon(present, absent, delta=1e-5), 2)
        4.6
    """
    ends = np.unique(np.concatenate([present, absent]))
    missed = np.searchsorted(np.sort(present), ends)  # "present" is said at or above a threshold
    alarms = absent.size - np.searchsorted(np.sort(absent), ends)
    best = int(np.argmin(missed / present.size + alarms / absent.size))
    fnr, fpr = float(missed[best]) / present.size, float(alarms[best]) / absent.size
    if fnr == fpr == 0:
        return math.inf
    ratios = [(1 - delta - other) / rate for rate, other in ((fnr, fpr), (fpr, fnr)) if rate > 0]
    return math.log(max(1.0, *ratios))


def find_noise(
    found: list[tuple[int, float]], *, delta: float, every: int, rounds: int
) -> tuple[tuple[float, int], ...]:
    """Noise multipliers with which the Gaussian mechanism has the ε of audited rounds.

    Each stands for the rounds until the next, in pairs; 0 where none of them is finite. Rounds
    that show nothing are left out: noise without limit adds nothing.
    """
    finite = [epsilon for _, epsilon in found if 0 < epsilon < math.inf]
    largest = max(finite, default=math.inf)
    return tuple(
        (
            0.0 if math.isinf(largest) else float(gaussian_sigma(min(epsilon, largest), delta)),
            min(every, rounds - number),
        )
        for number, epsilon in found
        if epsilon > 0
    )


def craft_update(
    module: nn.Module,
    weights: Tensor,
    pool: Tensor,
    *,
    example: Tensor,
    clip: float,
    learning_rate: float = 1.0,
    steps: int = 200,
    rate: float = 0.1,
) -> Tensor:
    r"""Return the update of a client that makes one step on a crafted example: ``(size,)``.

    It is not clipped.

    Pixels and a soft label are optimised by Adam until the update c is orthogonal to the pool's
    updates u and as long as the clipping norm C: the least
    :math:`\sum_u \langle u, C c / \|c\| \rangle^2 + \max(C - \|c\|, 0)^2` (Maddock et al.
    2023; brought to length C as in their code, lest being short pass for being orthogonal).

    Assumes: a classifier of real features; parameters in the order of ``module.parameters()``.

    Args:
        module: The architecture; it is copied.
        weights: Its trainable parameters now, ``(size,)``.
        pool: Clipped updates of other clients, ``(clients, size)``.
        example: Where pixels begin, of the shape of one record.
        clip: C.
        learning_rate: Of the client.
        steps: Of crafting.
        rate: Its learning rate.
    """
    _validate.whole(0, steps=steps)
    _validate.positive(clip=clip, learning_rate=learning_rate, rate=rate)
    if not example.is_floating_point():
        raise InvalidArgument(
            "Expected real features to craft an example of, got whole numbers. Audit by random "
            "canaries instead."
        )
    plain = copy.deepcopy(module).to(weights.device).eval()
    own = [part for part in plain.parameters() if part.requires_grad]
    with torch.no_grad():
        start = 0
        for part in own:
            part.copy_(weights[start : start + part.numel()].view_as(part))
            start += part.numel()
        outputs = plain(example[None])
    if outputs.ndim != 2:
        raise InvalidArgument(
            f"Expected one output per class to craft an example of, got outputs of shape "
            f"{tuple(outputs.shape[1:])}."
        )
    pixels = example.clone().requires_grad_()
    label = torch.zeros(outputs.shape[1], device=example.device, requires_grad=True)
    adam = torch.optim.Adam([pixels, label], lr=rate)
    with torch.enable_grad():
        for _ in range(steps):
            update = -learning_rate * _gradient(plain, own, pixels, label, further=True)
            length = update.norm()
            overlaps = pool @ (update * (clip / length.clamp(min=1e-12)))
            badness = overlaps.square().sum() + (clip - length).clamp(min=0).square()
            pixels.grad, label.grad = torch.autograd.grad(badness, [pixels, label])
            adam.step()
        return -learning_rate * _gradient(plain, own, pixels, label, further=False)


def _gradient(
    module: nn.Module, own: list[nn.Parameter], pixels: Tensor, label: Tensor, *, further: bool
) -> Tensor:
    said = module(pixels[None])[0].log_softmax(0)
    loss = -(label.softmax(0) * said).sum()
    found = torch.autograd.grad(loss, own, create_graph=further)
    return torch.cat([part.flatten() for part in found])
