"""Simulate DP-FedAvg with canaries among the clients: settings, cohorts and accounting.

The module ``server`` computes the rounds and needs torch; this module works without it, so settings
can be written and read anywhere.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.federated.directions import Directions
from epsilometer.audits.federated.iterates import KEPT
from epsilometer.audits.federated.rounds import (
    Iterates,
    RoundSettings,
    Visit,
    deal_canaries,
)
from epsilometer.audits.federated.whitened import make_filter
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.types import IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from epsilometer.audits.federated.server import FederatedRun

_LEAST = 0.2  # smallest noise accounted with a table of privacy losses; below, it takes minutes


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedTraining(RoundSettings):
    """Simulate federated averaging with user-level differential privacy (McMahan et al. 2018).

    Every round a cohort of clients trains the model on its own records; the server clips each
    update to norm S_t, sums, adds noise of standard deviation z · S_t to each coordinate, divides
    by a fixed number, and takes a step with the mean. With one record per client, one local step
    and a client learning rate of 1 it is DP-SGD.

    Guarantees: every client's update is what it would compute alone, whatever the sizes of the
        others' data; a planted canary has exactly norm S_t; same ``rng``, same result on the same
        device. An update that is not finite is skipped and counted.
    Assumes: the server is honest, and the divisor is known.

    Attributes:
        module: The torch model with its initial weights; it is copied.
        clients: (features, labels) of every client.
        loss: ``loss(outputs, labels)``, one number per example, or a loss of torch that has a
            ``reduction``.
        rounds: T.
        cohort: Clients per round; on average, if that varies.
        noise_multiplier: z, in clipping norms.
        learning_rate: Learning rate of clients.
        participation: Who takes part when; ``EveryEpoch()`` by default.
        noise: How the noise of different rounds is correlated; ``IndependentNoise()`` by default.
        clip: The clipping norm, fixed or adaptive; ``FixedClip(1.0)`` by default.
        batch_size: Batch size of the clients.
        epochs: Passes of a client over its records in one round.
        client_optimizer: Optimizer of the clients, a new one in every round; ``SGD()`` by default.
        server_rate: Learning rate of the server; with 1 and SGD the mean update is the step.
        server_optimizer: Optimizer of the server; ``SGD()`` by default.
        divisor: Number by which the sum is divided; the mean number of members by default, and
            never the actual number, which is private.
        at_once: Clients trained at once.
        device: ``"cpu"`` or ``"cuda"``.

    Example:
        >>> from torch import nn
        >>> from epsilometer.audits.federated.directions import SphereCanaries
        >>> from epsilometer.networks.ensemble import cross_entropy
        >>> data = np.random.default_rng(0)
        >>> clients = [(data.normal(size=(n, 4)), np.arange(n) % 2) for n in (1, 3, 2, 5)]
        >>> training = FederatedTraining(
        ...     nn.Linear(4, 2), cross_entropy, clients=clients, rounds=2, cohort=2,
        ...     noise_multiplier=0.1, learning_rate=0.1,
        ... )
        >>> canaries = SphereCanaries(count=4, dimension=training.size, key=7)
        >>> run = training.train(
        ...     canaries=canaries, planted=2, repetitions=1, rng=np.random.default_rng(0)
        ... )
        >>> run.participations.tolist(), run.observed.shape, run.unobserved.shape
        ([1, 1], (2,), (2,))
    """

    def __post_init__(self) -> None:
        counts = ("rounds", "cohort", "batch_size", "epochs", "at_once")
        _validate.whole(1, **{name: getattr(self, name) for name in counts})
        _validate.at_least(0, noise_multiplier=self.noise_multiplier)
        if math.isinf(self.noise_multiplier):
            raise InvalidArgument("Expected noise_multiplier to be finite, got inf.")
        _validate.positive(learning_rate=self.learning_rate, server_rate=self.server_rate)
        if self.divisor is not None:
            _validate.positive(divisor=self.divisor)
        self.clip.value_noise(self.noise_multiplier)  # which may refuse
        steady = self.noise is not None and self.noise.steady
        if steady and not getattr(self.clip, "fixed", False):
            raise InvalidArgument(
                f"Expected clip=FixedClip(…) with {type(self.noise).__name__}, whose noise is that "
                f"of several rounds together, got {self.clip!r}."
            )

    @property
    def size(self) -> int:
        """Return the number of trainable parameters, without buffers: the dimension of canaries."""
        return sum(part.numel() for part in self.module.parameters() if part.requires_grad)

    def fill_defaults(self) -> Self:
        """Return the same settings with defaults for a missing loss, noise and optimisers."""
        with needs("torch", extra="torch"):
            from epsilometer.networks.ensemble import cross_entropy
            from epsilometer.networks.optimizers import SGD
            from epsilometer.sampling.noise import IndependentNoise
        usual: dict[str, Any] = {
            "loss": cross_entropy,
            "noise": IndependentNoise(),
            "client_optimizer": SGD(),
            "server_optimizer": SGD(),
        }
        missing = {name: value for name, value in usual.items() if getattr(self, name) is None}
        return replace(self, **missing) if missing else self

    def train(
        self,
        *,
        rng: np.random.Generator,
        canaries: Directions | None = None,
        planted: int | None = None,
        repetitions: int | None = None,
        iterates: Iterates = "updates",
        visit: Visit | None = None,
    ) -> "FederatedRun":
        """Train once.

        Args:
            rng: Where all randomness comes from.
            canaries: Directions, the first ``planted`` of which take part.
            planted: Number of planted canaries; all by default. The others are only observed.
            repetitions: Rounds of every planted canary, one in each of as many periods, in addition
                to the cohort of clients; by default canaries are drawn like clients, and among
                them.
            iterates: View of an observer of all rounds: ``"updates"`` for the noisy mean of
                updates, ``"steps"`` for the server's steps, which differ if its optimiser has
                state; ``"none"`` skips it.
            visit: Called before every round with its number, its clipping norm and the weights,
                which it must not change.
        """
        if iterates not in get_args(Iterates):
            raise InvalidArgument(
                f"Expected iterates to be one of {', '.join(get_args(Iterates))}, got {iterates!r}."
            )
        with needs("torch", extra="torch"):
            from epsilometer.audits.federated.server import Watch, run_rounds
        count = self._count_planted(canaries, planted, repetitions)
        who, when = self._draw_cohorts(count, repetitions, rng)
        divisor = self.divisor
        if divisor is None:
            divisor = self.cohort + count * (repetitions or 0) / self.rounds
        filled, matched = self.fill_defaults(), None
        if iterates != "none" and repetitions:  # who is drawn like a client hides
            matched = make_filter(
                count,
                noise=filled.noise if iterates == "updates" else None,
                rounds=self.rounds,
                dimension=self.size,
                memory=KEPT if repetitions > 1 else 0,  # who takes part once needs no sum
            )
        watch = Watch(canaries, count, iterates, matched=matched)
        return run_rounds(filled, watch, who, when, divisor, rng=rng, visit=visit)

    def epsilon(
        self, delta: float, *, canaries: int = 0, repetitions: int | None = None
    ) -> tuple[float, str]:
        """Return the accounted ε of one client against an observer of all rounds, and its method.

        It is an upper bound on ε if neighbours differ by one client's updates being present or 0
        (removing a client from shuffled cohorts would move all others). For Poisson cohorts it is
        that of the Poisson accountant. Otherwise secret participation does not amplify, and it is
        that of the Gaussian mechanism for the most rounds a client can be in.

        Args:
            delta: δ.
            canaries: Number of planted canaries.
            repetitions: As of :meth:`train`.
        """
        _validate.open_unit(delta=delta)
        if self.noise_multiplier == 0:
            return math.inf, "no noise"
        rules, noise = self.participation, self.fill_defaults().noise
        drawn = repetitions is None  # canaries are drawn like clients, and among them
        members = len(self.clients) + (canaries if drawn else 0)
        independent = not noise.steady and self.noise_multiplier >= _LEAST
        if drawn and getattr(rules, "poisson", False) and independent:
            from epsilometer.accounting import pld

            spent = pld.poisson_epsilon(
                noise_multiplier=self.noise_multiplier,
                sampling_rate=self.cohort / members,
                steps=self.rounds,
                delta=delta,
                adjacency="zero_out",
            )
            return spent, "PLD of Poisson sampling"
        most, apart = repetitions or 0, 1  # the last of a period, and the first of the next
        if drawn:
            most = rules.most(members, self.cohort, rounds=self.rounds)
            apart = rules.apart(members, self.cohort, rounds=self.rounds)
        mu = noise.sensitivity(most, rounds=self.rounds, apart=apart) / self.noise_multiplier
        word = "one round" if most == 1 else f"{most} rounds"
        return gdp_epsilon(mu, delta), f"Gaussian mechanism, {word}, no amplification"

    def check(self, *, planted: int = 0, repetitions: int | None = None) -> None:
        """Refuse clients, a module or cohorts that :meth:`train` would refuse.

        Args:
            planted: Number of planted canaries.
            repetitions: As of :meth:`train`.
        """
        with needs("torch", extra="torch"):
            from epsilometer.audits.federated.server import prepare
        filled, rng = self.fill_defaults(), np.random.default_rng(0)
        filled.noise.sensitivity(1, rounds=self.rounds)  # which may refuse so many
        members = len(self.clients) + (planted if repetitions is None else 0)
        if self.clients:
            self.participation.cohorts(members, self.cohort, rounds=self.rounds, rng=rng)
        with prepare(filled, rng):
            pass

    def updates(self, weights: "Tensor", clients: IntArray, *, rng: np.random.Generator) -> Any:
        """Return the unclipped updates of some clients from given weights: ``(clients, size)``.

        Clients are sorted by their number of steps, largest first; ``rng`` draws their batches.
        """
        with needs("torch", extra="torch"):
            from epsilometer.audits.federated.server import compute_updates
        return compute_updates(self.fill_defaults(), weights, clients, rng=rng)

    def _count_planted(
        self, canaries: Directions | None, planted: int | None, repetitions: int | None
    ) -> int:
        """Return the checked number of planted canaries."""
        if canaries is None:
            if planted or repetitions:
                raise InvalidArgument("Expected canaries to plant, got none.")
            return 0
        if canaries.dimension != self.size:
            raise InvalidArgument(
                f"Expected canaries over {self.size} trainable parameters, got canaries of "
                f"dimension {canaries.dimension}."
            )
        if canaries.count > self.size:
            raise InvalidArgument(
                f"Expected at most {self.size} canaries, one per parameter, got {canaries.count}: "
                "more cannot all be nearly orthogonal, and would be mistaken for each other. "
                "Give fewer, or a larger model."
            )
        count = canaries.count if planted is None else planted
        _validate.whole(1, planted=count)
        if count > canaries.count:
            raise InvalidArgument(
                f"Expected at most {canaries.count} planted canaries, got {planted}."
            )
        return count

    def _draw_cohorts(
        self, planted: int, repetitions: int | None, rng: np.random.Generator
    ) -> tuple[list[IntArray], list[IntArray]]:
        """Draw clients and canaries of every round."""
        clients = len(self.clients)
        if clients == 0:
            raise InvalidArgument("Expected at least one client, got none.")
        members = self.participation.cohorts(
            clients + (planted if repetitions is None else 0),
            self.cohort,
            rounds=self.rounds,
            rng=rng,
        )
        who = [drawn[drawn < clients] for drawn in members]
        if repetitions is not None:
            return who, deal_canaries(planted, repetitions, rounds=self.rounds, rng=rng)
        when = [drawn[drawn >= clients] - clients for drawn in members]
        if planted and not any(drawn.size for drawn in when):
            raise InvalidArgument(
                f"Expected canaries in some round, none of {planted} takes part in any of "
                f"{self.rounds} rounds. Give more rounds or canaries, or repetitions=1."
            )
        return who, when
