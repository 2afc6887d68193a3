"""CANIFE, an audit of federated training to compare with: single rounds, then composition."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.accounting import pld
from epsilometer.errors import InvalidArgument
from epsilometer.observations import Scores
from epsilometer.results import EpsilonEstimate
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.stats.thresholds import Best

if TYPE_CHECKING:
    from epsilometer.training.federated import FederatedTraining


@dataclass(frozen=True, kw_only=True)
class CanifeAudit:
    """What CANIFE says of one training.

    Attributes:
        estimate: ε of the whole training.
        rounds: (round, ε of that round alone) pairs.
    """

    estimate: EpsilonEstimate
    rounds: tuple[tuple[int, float], ...]


def audit_canife(
    training: "FederatedTraining",
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
    clients; half of ``scores`` sums of a round have it, half do not, each with a fresh cohort and
    fresh noise; the inner product with its direction is the score. The ε of that round, by the
    Bayesian bound of Zanella-Béguelin et al., is turned into the noise of a Gaussian mechanism, and
    rounds are composed as if clients were sampled by Poisson.

    Guarantees: none. It is an estimate, small where scores are few: a hundred of them cannot show
        more than ln 50 or so in one round; and composition assumes a sampling that hardly
        anybody does.

    Args:
        training: What is trained; without canaries of any other kind.
        delta: δ.
        every: Rounds from one audited round to the next.
        pool: Clients whose updates the example is crafted against, and cohorts are made of.
        scores: Of an audited round, with the example and without it together.
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
    noise = [
        (float(gaussian_sigma(found, delta)), min(every, training.rounds - number))
        for number, found in rounds.found
    ]
    epsilon = pld.varied_poisson_epsilon(
        noise, sampling_rate=training.cohort / len(training.clients), delta=delta
    )
    return CanifeAudit(
        estimate=EpsilonEstimate(
            epsilon=epsilon,
            low=0.0,
            high=float("inf"),
            delta=delta,
            confidence=0.0,
            method="CANIFE: rounds by a crafted example, composed as Poisson sampling",
            direction="both",
            subject="federated training",
            adjacency="add_remove",
            cites=("maddock2023", "zanella2023"),
            caveats=("Neither a lower nor an upper bound: nothing is known of its error.",),
        ),
        rounds=tuple(rounds.found),
    )


@dataclass(eq=False)
class _Rounds:
    """Visits rounds, and audits some of them."""

    training: "FederatedTraining"
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
        with needs("torch", extra="torch"):
            from epsilometer.training.crafting import crafted_direction
            from epsilometer.training.ensemble import as_tensor

        training, rng = self.training, self.rng
        some = rng.choice(
            len(training.clients), min(self.pool, len(training.clients)), replace=False
        )
        updates = training.updates(weights, some, rng=rng)
        norms = updates.norm(dim=1, keepdim=True)
        clipped = updates * (clip / norms).clamp(max=1.0)
        clipped = clipped[norms[:, 0].isfinite()]
        example = as_tensor(training.clients[some[0]][0], training.device)[0]
        direction = crafted_direction(
            training.module, weights, clipped, example=example, clip=clip, steps=self.steps
        )
        # A score is linear in the sum: what each client adds to it is enough.
        parts = (clipped @ direction).cpu().double().numpy() / clip
        half = self.scores // 2
        drawn = rng.choice(parts, (2, half, training.cohort)).sum(2)
        drawn += training.clip.value_noise(training.noise_multiplier) * rng.standard_normal(
            (2, half)
        )
        bound = epsilon_lower_bound(
            Scores(inside=drawn[0] + 1.0, outside=drawn[1]),
            delta=self.delta,
            method="joint_beta",
            rule=Best(),
        )
        self.found.append((number, bound.epsilon))
