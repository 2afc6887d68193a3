"""DP-FedAvg in one process: a server, clients that train together, and canaries among them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from epsilometer import _validate
from epsilometer.accounting import pld
from epsilometer.audits.federated.clipping import Clipping, FixedClip
from epsilometer.audits.federated.participation import (
    EveryEpoch,
    Participation,
    PoissonCohorts,
    once_in_each,
)
from epsilometer.audits.federated.sphere import Directions
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import explain_full, one_thread, own_randomness
from epsilometer.networks.local import (
    Batches,
    ClientRecords,
    ClientTrainer,
    local_batches,
    make_client_trainer,
)
from epsilometer.networks.optimizers import SGD, Optimizer
from epsilometer.sampling.noise import IndependentNoise, Noise, Stream
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.types import FloatArray, IntArray

Visit: TypeAlias = Callable[[int, float, Tensor], None]
Iterates: TypeAlias = Literal["updates", "steps", "none"]
_CLIP, _NOISE, _EVERY_EPOCH, _SGD = FixedClip(), IndependentNoise(), EveryEpoch(), SGD()
_LEAST = 0.2  # noise by Poisson sampling with a table of privacy losses; below it takes minutes


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedRun:
    """What one training ended with, and what was seen of its canaries.

    Attributes:
        module: The final model.
        moved: Cosines of planted canaries with θ_T − θ_0, ``(planted,)``.
        model: Cosines of planted canaries with θ_T itself, ``(planted,)``.
        observed: Each planted canary's highest cosine over the rounds, ``(planted,)``; empty where
            nobody looked at the iterates.
        unobserved: The same of canaries that never took part.
        participations: In how many rounds each planted canary took part, ``(planted,)``.
        clips: Clipping norm of every round, ``(rounds,)``.
        members: How many took part in every round, canaries among them, ``(rounds,)``.
        unclipped: How many of their updates were not longer than the clipping norm, ``(rounds,)``.
        lost: How many updates were not finite and were left out, ``(rounds,)``.
    """

    module: nn.Module
    moved: FloatArray
    model: FloatArray
    observed: FloatArray
    unobserved: FloatArray
    participations: IntArray
    clips: FloatArray
    members: IntArray
    unclipped: IntArray
    lost: IntArray


@dataclass(frozen=True, eq=False)
class FederatedTraining:
    """Federated averaging with user-level differential privacy (McMahan et al. 2018).

    Every round a cohort of clients trains the model on its own records; the server clips each
    update to norm S_t, sums, adds noise of standard deviation z · S_t to each coordinate, divides
    by a fixed number, and takes a step with the mean. With one record a client, one local step and
    a client learning rate of 1 it is DP-SGD.

    Guarantees: every client's update is what he would compute alone, whatever the sizes of the
        others' data; a planted canary adds exactly norm S_t; same ``rng``, same result on the same
        device. An update that is not finite is left out, and counted.
    Assumes: the server is honest, and the divisor is known.

    Attributes:
        module: The model, and its first weights; it is copied.
        loss: ``loss(outputs, labels)``; one number an example, or a loss of torch that can be told
            not to average.
        clients: (features, labels) of every client.
        rounds: T.
        cohort: Members of a round; on average, where that varies.
        participation: Who takes part when.
        noise_multiplier: z, in clipping norms.
        noise: Whether noise is independent from round to round, or how not.
        clip: The clipping norm, fixed or adaptive.
        learning_rate: Of clients.
        batch_size: Of clients.
        epochs: Passes of a client over his records in one round.
        client_optimizer: What clients make their steps with; starts anew in every round.
        server_rate: Learning rate of the server; with 1 and SGD the mean update is the step.
        server_optimizer: What the server makes its steps with.
        divisor: By what the sum is divided; the mean number of members by default, and never the
            number that took part in fact, which is private.
        at_once: Clients trained at once.
        device: ``"cpu"`` or ``"cuda"``.

    Example:
        >>> from epsilometer.audits.federated.sphere import SphereCanaries
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

    module: nn.Module
    loss: Any
    clients: Sequence[tuple[ArrayLike, ArrayLike]] = field(kw_only=True)
    rounds: int = field(kw_only=True)
    cohort: int = field(kw_only=True)
    participation: Participation = field(default=_EVERY_EPOCH, kw_only=True)
    noise_multiplier: float = field(kw_only=True)
    noise: Noise = field(default=_NOISE, kw_only=True)
    clip: Clipping = field(default=_CLIP, kw_only=True)
    learning_rate: float = field(kw_only=True)
    batch_size: int = field(default=20, kw_only=True)
    epochs: int = field(default=1, kw_only=True)
    client_optimizer: Optimizer = field(default=_SGD, kw_only=True)
    server_rate: float = field(default=1.0, kw_only=True)
    server_optimizer: Optimizer = field(default=_SGD, kw_only=True)
    divisor: float | None = field(default=None, kw_only=True)
    at_once: int = field(default=32, kw_only=True)
    device: str = field(default="cpu", kw_only=True)

    def __post_init__(self) -> None:
        _validate.whole(
            1,
            rounds=self.rounds,
            cohort=self.cohort,
            batch_size=self.batch_size,
            epochs=self.epochs,
            at_once=self.at_once,
        )
        _validate.at_least(0, noise_multiplier=self.noise_multiplier)
        if math.isinf(self.noise_multiplier):
            raise InvalidArgument("Expected noise_multiplier to be finite, got inf.")
        _validate.positive(learning_rate=self.learning_rate, server_rate=self.server_rate)
        if self.divisor is not None:
            _validate.positive(divisor=self.divisor)
        if self.device != "cpu" and not torch.cuda.is_available():
            raise InvalidArgument(
                f"Expected a CUDA device for {self.device!r}, torch sees none here."
            )
        self.clip.value_noise(self.noise_multiplier)  # which may refuse
        if self.noise.steady and not isinstance(self.clip, FixedClip):
            raise InvalidArgument(
                f"Expected clip=FixedClip(…) with {type(self.noise).__name__}, whose noise is that "
                f"of several rounds together, got {self.clip!r}."
            )

    @property
    def size(self) -> int:
        """Trainable parameters: the dimension of canaries. Buffers do not count."""
        return sum(part.numel() for part in self.module.parameters() if part.requires_grad)

    def train(
        self,
        *,
        rng: np.random.Generator,
        canaries: Directions | None = None,
        planted: int | None = None,
        repetitions: int | None = None,
        iterates: Iterates = "updates",
        visit: Visit | None = None,
    ) -> FederatedRun:
        """Trains once.

        Args:
            rng: Where all randomness comes from.
            canaries: Directions, the first of which take part.
            planted: How many of them do; all by default. The others are only looked at.
            repetitions: Rounds of every planted canary, one in each of as many periods, beside the
                cohort of clients; by default canaries are drawn like clients, and among them.
            iterates: What whoever sees all rounds sees of each: ``"updates"`` the noisy mean of
                updates, ``"steps"`` how far the server went, which differs where it has an
                optimiser with a memory; ``"none"`` does not look.
            visit: Called before every round with its number, its clipping norm and the weights,
                which it must leave as they are.
        """
        if iterates not in get_args(Iterates):
            raise InvalidArgument(
                f"Expected iterates to be one of {', '.join(get_args(Iterates))}, got {iterates!r}."
            )
        taking_part = self._planted(canaries, planted, repetitions)
        who, when = self._cohorts(taking_part, repetitions, rng)
        with (
            explain_full(self.device),
            one_thread(self.device),
            own_randomness(self.device, rng),
        ):
            records, how = self._ready()
            watch = _Watch(canaries, taking_part, iterates)
            server = _Server(self, how, watch, self._divisor(taking_part, repetitions), rng)
            with torch.no_grad():
                for number, (clients, planted_now) in enumerate(zip(who, when, strict=True)):
                    if visit is not None:
                        visit(number, server.clip, server.weights)
                    server.round(records, clients, planted_now)
                return server.ended(when)

    def epsilon(
        self, delta: float, *, canaries: int = 0, repetitions: int | None = None
    ) -> tuple[float, str]:
        """What accounting says of one client who sees everything, and how it comes to it.

        An upper bound on ε where neighbours differ by one client's updates being there or 0 (to
        take a client out of shuffled cohorts would move all others too). Of Poisson cohorts it is
        that of the Poisson accountant; else nothing is won by not knowing who takes part when, and
        it is that of the Gaussian mechanism for as many rounds as a client can be in.

        Args:
            delta: δ.
            canaries: How many are planted.
            repetitions: As of :meth:`train`.
        """
        _validate.open_unit(delta=delta)
        members = len(self.clients) + (canaries if repetitions is None else 0)
        if self.noise_multiplier == 0:
            return math.inf, "no noise"
        by_poisson = (
            repetitions is None
            and isinstance(self.participation, PoissonCohorts)
            and isinstance(self.noise, IndependentNoise)
            and self.noise_multiplier >= _LEAST
        )
        if by_poisson:
            spent = pld.poisson_epsilon(
                noise_multiplier=self.noise_multiplier,
                sampling_rate=self.cohort / members,
                steps=self.rounds,
                delta=delta,
                adjacency="zero_out",
            )
            return spent, "PLD of Poisson sampling"
        most, apart = self._pattern(members, repetitions)
        times = self.noise.sensitivity(most, rounds=self.rounds, apart=apart)
        times /= self.noise_multiplier
        return gdp_epsilon(times, delta), f"Gaussian mechanism, {_rounds(most)}, no amplification"

    def _pattern(self, members: int, repetitions: int | None) -> tuple[int, int]:
        """In how many rounds one can take part at most, and how far apart they are at least."""
        if repetitions is not None:
            return repetitions, 1  # the last of a period, and the first of the next
        how = self.participation
        return (
            how.most(members, self.cohort, rounds=self.rounds),
            how.apart(members, self.cohort, rounds=self.rounds),
        )

    def check(self, *, planted: int = 0, repetitions: int | None = None) -> None:
        """Refuses clients, a module or cohorts that :meth:`train` would refuse.

        Args:
            planted: How many canaries are to take part.
            repetitions: As of :meth:`train`.
        """
        self.noise.sensitivity(1, rounds=self.rounds)  # which may refuse so many
        rng = np.random.default_rng(0)
        beside = planted if repetitions is None else 0
        if self.clients:
            self.participation.cohorts(
                len(self.clients) + beside, self.cohort, rounds=self.rounds, rng=rng
            )
        with explain_full(self.device), own_randomness(self.device, rng):
            self._ready()

    def updates(self, weights: Tensor, clients: IntArray, *, rng: np.random.Generator) -> Tensor:
        """How far some clients go from given weights, not clipped: ``(clients, size)``.

        Sorted by how many steps they make, the longest first; ``rng`` draws their batches.
        """
        with (
            explain_full(self.device),
            one_thread(self.device),
            own_randomness(self.device, rng),
        ):
            records, how = self._ready()
            with torch.no_grad():
                steps = _steps(self, records, clients, rng)
                return torch.cat(list(how.updates(weights, steps, records)))

    def _ready(self) -> tuple[ClientRecords, ClientTrainer]:
        """The clients' records, and what trains on them."""
        records = ClientRecords.of(self.clients, device=self.device)
        return records, make_client_trainer(
            self.module,
            self.loss,
            records,
            optimizer=self.client_optimizer,
            learning_rate=self.learning_rate,
            at_once=min(self.at_once, self.cohort),
            device=self.device,
        )

    def _planted(
        self, canaries: Directions | None, planted: int | None, repetitions: int | None
    ) -> int:
        """How many canaries take part, all checked."""
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
                f"Expected at most {self.size} canaries, one a parameter, got {canaries.count}: "
                "more cannot all be nearly orthogonal, and would be mistaken for each other. "
                "Give fewer, or a larger model."
            )
        taking_part = canaries.count if planted is None else planted
        _validate.whole(1, planted=taking_part)
        if taking_part > canaries.count:
            raise InvalidArgument(
                f"Expected at most {canaries.count} planted canaries, got {planted}."
            )
        return taking_part

    def _cohorts(
        self, planted: int, repetitions: int | None, rng: np.random.Generator
    ) -> tuple[list[IntArray], list[IntArray]]:
        """Clients and canaries of every round."""
        clients = len(self.clients)
        if clients == 0:
            raise InvalidArgument("Expected at least one client, got none.")
        beside = repetitions is not None
        members = self.participation.cohorts(
            clients + (0 if beside else planted), self.cohort, rounds=self.rounds, rng=rng
        )
        who = [drawn[drawn < clients] for drawn in members]
        if repetitions is not None:
            return who, once_in_each(planted, repetitions, rounds=self.rounds, rng=rng)
        when = [drawn[drawn >= clients] - clients for drawn in members]
        if planted and not any(drawn.size for drawn in when):
            raise InvalidArgument(
                f"Expected canaries in some round, none of {planted} takes part in any of "
                f"{self.rounds} rounds. Give more rounds or canaries, or repetitions=1."
            )
        return who, when

    def _divisor(self, planted: int, repetitions: int | None) -> float:
        if self.divisor is not None:
            return self.divisor
        return self.cohort + planted * (repetitions or 0) / self.rounds


class _Watch:
    """Looks at canaries: the highest cosine of each so far."""

    def __init__(self, canaries: Directions | None, planted: int, iterates: Iterates) -> None:
        self.canaries, self.planted, self.iterates = canaries, planted, iterates
        count = 0 if canaries is None or iterates == "none" else canaries.count
        self.highest = np.full(count, -np.inf)

    def see(self, vector: Tensor) -> None:
        np.maximum(self.highest, self.cosines(vector), out=self.highest)

    def cosines(self, vector: Tensor) -> FloatArray:
        if self.canaries is None:
            return np.zeros(0)
        seen = vector if vector.is_cuda else vector.numpy()  # compared where it is
        return self.canaries.cosines(seen)

    def sum_of(self, planted: IntArray, norm: float, device: str) -> Tensor:
        """What planted canaries send, together."""
        assert self.canaries is not None
        return self.canaries.inject_tensor(planted, norm, device=device)


class _Server:
    """Training under way."""

    def __init__(
        self,
        how: FederatedTraining,
        clients: ClientTrainer,
        watch: _Watch,
        divisor: float,
        rng: np.random.Generator,
    ) -> None:
        self.how, self.clients, self.watch, self.divisor, self.rng = (
            how,
            clients,
            watch,
            divisor,
            rng,
        )
        self.weights = clients.start.clone()
        self.state = how.server_optimizer.start(self.weights[None])
        generator = torch.Generator(how.device).manual_seed(int(rng.integers(2**63)))
        self.noise: Stream = how.noise.start(
            self.weights.numel(), rounds=how.rounds, generator=generator
        )
        self.multiplier = how.clip.value_noise(how.noise_multiplier)
        self.clip = how.clip.first
        self.clips: list[float] = []
        self.members: list[int] = []
        self.unclipped: list[int] = []
        self.lost: list[int] = []

    def round(self, records: ClientRecords, clients: IntArray, planted: IntArray) -> None:
        """One round: its noise is that of its clipping norm, which is then followed up."""
        how, clip = self.how, self.clip
        total, unclipped, lost = self._summed(records, clients)
        if planted.size:
            total += self.watch.sum_of(planted, clip, how.device)
            unclipped += planted.size  # each is exactly as long as allowed
        if self.multiplier:
            total += self.noise.next(self.multiplier * clip)
        mean = total.div_(self.divisor)
        if self.watch.iterates == "updates":
            self.watch.see(mean)
        before = self.weights.clone() if self.watch.iterates == "steps" else self.weights
        how.server_optimizer.step(self.weights[None], -mean[None], self.state, rate=how.server_rate)
        if self.watch.iterates == "steps":
            self.watch.see(self.weights - before)
        members = clients.size + planted.size
        self.clips.append(clip)
        self.members.append(members)
        self.unclipped.append(unclipped)
        self.lost.append(lost)
        if not bool(torch.isfinite(self.weights).all()):
            raise InvalidArgument(
                f"Expected a finite model, it is not after round {len(self.clips)} of "
                f"{how.rounds}. Give a smaller server_rate."
            )
        self.clip = how.clip.after(
            clip,
            unclipped=unclipped,
            members=members - lost,
            mean=self.divisor,
            normal=float(self.rng.standard_normal()),
        )

    def _summed(self, records: ClientRecords, clients: IntArray) -> tuple[Tensor, int, int]:
        """The clients' clipped updates; how many were not clipped, how many not finite."""
        batches = _steps(self.how, records, clients, self.rng)
        total, unclipped, lost = torch.zeros_like(self.weights), 0, 0
        for updates in self.clients.updates(self.weights, batches, records):
            norms = updates.norm(dim=1)
            # A sum of squares may overflow where no update does; such an update is as good as lost.
            finite = torch.isfinite(norms)
            factors = torch.where(finite, (self.clip / norms).clamp(max=1.0), 0.0)
            total += factors @ torch.where(finite[:, None], updates, 0.0)
            unclipped += int((finite & (norms <= self.clip)).sum())
            lost += int((~finite).sum())
        return total, unclipped, lost

    def ended(self, when: list[IntArray]) -> FederatedRun:
        """What it ended with."""
        watch, planted = self.watch, self.watch.planted
        taken = np.concatenate([np.zeros(0, np.int64), *when])
        return FederatedRun(
            module=self.clients.module(self.weights).eval(),
            moved=watch.cosines(self.weights - self.clients.start)[:planted],
            model=watch.cosines(self.weights)[:planted],
            observed=watch.highest[:planted],
            unobserved=watch.highest[planted:],
            participations=np.bincount(taken, minlength=planted)[:planted],
            clips=np.array(self.clips),
            members=np.array(self.members, np.int64),
            unclipped=np.array(self.unclipped, np.int64),
            lost=np.array(self.lost, np.int64),
        )


def _steps(
    how: FederatedTraining, records: ClientRecords, clients: IntArray, rng: np.random.Generator
) -> list[Batches]:
    """The batches of some clients, as numbers of records."""
    starts = records.starts
    return [
        [
            starts[client] + own
            for own in local_batches(
                int(records.sizes[client]), how.batch_size, epochs=how.epochs, rng=rng
            )
        ]
        for client in clients
    ]


def _rounds(most: int) -> str:
    return "one round" if most == 1 else f"{most} rounds"
