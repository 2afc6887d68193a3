"""Run the rounds of DP-FedAvg: train clients, clip, add noise, step, and score canaries."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from epsilometer.audits.federated.directions import Directions
from epsilometer.audits.federated.iterates import MatchedFilter
from epsilometer.audits.federated.rounds import Iterates, RoundSettings, Visit
from epsilometer.audits.federated.whitened import WhitenedFilter
from epsilometer.errors import InvalidArgument
from epsilometer.networks.devices import as_tensor, explain_full, one_thread, own_randomness
from epsilometer.networks.local import (
    Batches,
    ClientRecords,
    Clients,
    ClientTrainer,
    local_batches,
    make_client_trainer,
)
from epsilometer.types import FloatArray, IntArray

_SEEN = 256  # records tried at once
_CACHED = 1 << 23  # weights of all models at once on a CPU: more are slower than fewer at a time


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedRun:
    """Hold the result of one training, and the cosines of its canaries.

    Attributes:
        module: The final model.
        moved: Cosines of planted canaries with θ_T − θ_0, ``(planted,)``.
        model: Cosines of planted canaries with θ_T itself, ``(planted,)``.
        observed: Each planted canary's highest cosine over the rounds, ``(planted,)``; empty if the
            iterates were not observed.
        unobserved: The same of canaries that never took part.
        matched: Each planted canary's cosine with the sum over its own rounds, ``(planted,)``; nan
            if it took part in none, empty if the iterates were not observed.
        participations: Number of rounds in which each planted canary took part, ``(planted,)``.
        clips: Clipping norm of every round, ``(rounds,)``.
        members: Number of participants of every round, including canaries, ``(rounds,)``.
        unclipped: Number of their updates that were not longer than the clipping norm,
            ``(rounds,)``.
        lost: Number of updates that were skipped as not finite, ``(rounds,)``.
    """

    module: nn.Module
    moved: FloatArray
    model: FloatArray
    observed: FloatArray
    unobserved: FloatArray
    matched: FloatArray
    participations: IntArray
    clips: FloatArray
    members: IntArray
    unclipped: IntArray
    lost: IntArray


class Watch:
    """Watch canaries: keep the highest cosine of each so far, and that with its own rounds.

    Args:
        canaries: All of them.
        planted: Number of planted canaries.
        iterates: What is checked.
        matched: Filter that compares each canary with its own rounds.
    """

    def __init__(
        self,
        canaries: Directions | None,
        planted: int,
        iterates: Iterates,
        *,
        matched: MatchedFilter | WhitenedFilter | None = None,
    ) -> None:
        self.canaries, self.planted, self.iterates = canaries, planted, iterates
        count = 0 if canaries is None or iterates == "none" else canaries.count
        self.highest = np.full(count, -np.inf)
        self.matched = matched or MatchedFilter(min(planted, count))

    def see(self, vector: Tensor, members: IntArray) -> None:
        """Compare all canaries with what one round released, of which some were members."""
        cosines = self.cosines(vector)
        np.maximum(self.highest, cosines, out=self.highest)
        self.matched.see(vector.cpu().numpy(), cosines, members)

    def cosines(self, vector: Tensor) -> FloatArray:
        """Return the cosines of all canaries with a vector, computed where it is."""
        if self.canaries is None:
            return np.zeros(0)
        return self.canaries.cosines(vector if vector.is_cuda else vector.numpy())


@contextmanager
def prepare(
    how: RoundSettings, rng: np.random.Generator
) -> Iterator[tuple[Clients, ClientTrainer]]:
    """Return the clients' records and their trainer, with their own randomness."""
    if how.device != "cpu" and not torch.cuda.is_available():
        raise InvalidArgument(f"Expected a CUDA device for {how.device!r}, torch sees none here.")
    # One thread: models here are small, and many audits run side by side.
    with explain_full(how.device), one_thread(how.device), own_randomness(how.device, rng):
        clients = Clients(how.clients, device=how.device)
        together = make_client_trainer(
            how.module,
            how.loss,
            clients,
            optimizer=how.client_optimizer,
            learning_rate=how.learning_rate,
            at_once=_limit_at_once(how),
            device=how.device,
        )
        with torch.no_grad():
            yield clients, together


def run_rounds(
    how: RoundSettings,
    watch: Watch,
    who: list[IntArray],
    when: list[IntArray],
    divisor: float,
    *,
    rng: np.random.Generator,
    visit: Visit | None = None,
) -> FederatedRun:
    """Train with settings whose defaults are filled in.

    Args:
        how: The settings.
        watch: Observer of the canaries.
        who: Clients of every round.
        when: Canaries of every round.
        divisor: Number by which the sum of updates is divided.
        rng: Where all randomness comes from.
        visit: See :meth:`FederatedTraining.train`.
    """
    with prepare(how, rng) as (clients, together):
        server = _Server(how, clients, together, watch, divisor, rng)
        for number, (members, planted) in enumerate(zip(who, when, strict=True)):
            if visit is not None:
                visit(number, server.clip, server.weights)
            server.run_round(members, planted)
        return server.finish(when)


def compute_updates(
    how: RoundSettings, weights: Tensor, clients: IntArray, *, rng: np.random.Generator
) -> Tensor:
    """Return the updates of some clients from given weights; see FederatedTraining.updates."""
    with prepare(how, rng) as (every, together):
        records = every.take(clients)
        batches = _draw_batches(how, records, rng)
        return torch.cat(list(together.updates(weights, batches, records)))


def measure_accuracy(module: nn.Module, test: tuple[ArrayLike, ArrayLike]) -> float:
    """Return the share of labels that a model predicts, taking its likeliest output."""
    device = next(module.parameters()).device
    x, y = (as_tensor(part, "cpu") for part in test)
    with torch.no_grad():
        right = [
            (module(x[part].to(device)).argmax(-1).cpu() == y[part]).float().flatten()
            for part in (slice(start, start + _SEEN) for start in range(0, len(x), _SEEN))
        ]
    return float(torch.cat(right).mean())


class _Server:
    """Hold the state of a training in progress."""

    def __init__(
        self,
        how: RoundSettings,
        clients: Clients,
        together: ClientTrainer,
        watch: Watch,
        divisor: float,
        rng: np.random.Generator,
    ) -> None:
        self.how, self.clients, self.together = how, clients, together
        self.watch, self.divisor, self.rng = watch, divisor, rng
        self.weights = together.start.clone()
        self.state = how.server_optimizer.start(self.weights[None])
        generator = torch.Generator(how.device).manual_seed(int(rng.integers(2**63)))
        self.noise = how.noise.start(self.weights.numel(), rounds=how.rounds, generator=generator)
        self.multiplier = how.clip.value_noise(how.noise_multiplier)
        self.clip = how.clip.first
        self.history: list[tuple[float, int, int, int]] = []  # clip, members, unclipped, lost

    def run_round(self, clients: IntArray, planted: IntArray) -> None:
        """Run one round with noise for its clipping norm, then update that norm."""
        how, watch, clip = self.how, self.watch, self.clip
        total, unclipped, lost = self._sum_updates(clients)
        if planted.size:
            assert watch.canaries is not None
            total += watch.canaries.inject_tensor(planted, clip, device=how.device)
            unclipped += planted.size  # each is exactly as long as allowed
        if self.multiplier:
            total += self.noise.next(self.multiplier * clip)
        mean = total.div_(self.divisor)
        if watch.iterates == "updates":
            watch.see(mean, planted)
        before = self.weights.clone() if watch.iterates == "steps" else self.weights
        how.server_optimizer.step(self.weights[None], -mean[None], self.state, rate=how.server_rate)
        if watch.iterates == "steps":
            watch.see(self.weights - before, planted)
        members = clients.size + planted.size
        self.history.append((clip, members, unclipped, lost))
        if not bool(torch.isfinite(self.weights).all()):
            raise InvalidArgument(
                f"Expected a finite model, it is not after round {len(self.history)} of "
                f"{how.rounds}. Give a smaller server_rate."
            )
        self.clip = how.clip.after(
            clip,
            unclipped=unclipped,
            members=members - lost,
            mean=self.divisor,
            normal=float(self.rng.standard_normal()),
        )

    def _sum_updates(self, clients: IntArray) -> tuple[Tensor, int, int]:
        """Return the clipped updates' sum, and the numbers that were unclipped and not finite."""
        total, unclipped, lost = torch.zeros_like(self.weights), 0, 0
        if clients.size == 0:  # nobody was drawn
            return total, unclipped, lost
        records = self.clients.take(clients)
        batches = _draw_batches(self.how, records, self.rng)
        for updates in self.together.updates(self.weights, batches, records):
            norms = updates.norm(dim=1)
            # A sum of squares may overflow though no number does; such an update counts as lost.
            finite = torch.isfinite(norms)
            factors = torch.where(finite, (self.clip / norms).clamp(max=1.0), 0.0)
            gone = int((~finite).sum())
            if gone:  # a factor of 0 would not make them vanish
                updates[~finite] = 0.0
            total += factors @ updates
            unclipped += int((finite & (norms <= self.clip)).sum())
            lost += gone
        return total, unclipped, lost

    def finish(self, when: list[IntArray]) -> FederatedRun:
        """Return the result of the training."""
        watch, planted = self.watch, self.watch.planted
        taken = np.concatenate([np.zeros(0, np.int64), *when])
        clips, *counts = zip(*self.history, strict=True)
        members, unclipped, lost = (np.array(each, np.int64) for each in counts)
        return FederatedRun(
            module=self.together.module(self.weights).eval(),
            moved=watch.cosines(self.weights - self.together.start)[:planted],
            model=watch.cosines(self.weights)[:planted],
            observed=watch.highest[:planted],
            unobserved=watch.highest[planted:],
            matched=watch.matched.summarise(),
            participations=np.bincount(taken, minlength=planted)[:planted],
            clips=np.array(clips),
            members=members,
            unclipped=unclipped,
            lost=lost,
        )


def _limit_at_once(how: RoundSettings) -> int:
    """Return how many clients to train at once: large models one or two at a time on a CPU."""
    wanted = min(how.at_once, how.cohort)
    if how.device != "cpu" or not isinstance(how.module, nn.Module):
        return wanted
    size = sum(part.numel() for part in how.module.parameters())
    return min(wanted, max(1, _CACHED // max(1, size)))


def _draw_batches(
    how: RoundSettings, records: ClientRecords, rng: np.random.Generator
) -> list[Batches]:
    """Draw the batches of the clients of a cohort, as numbers of records."""
    return [
        [start + own for own in local_batches(size, how.batch_size, epochs=how.epochs, rng=rng)]
        for start, size in zip(records.starts, records.sizes.tolist(), strict=True)
    ]
