"""Check what a server averages by how far its residuals lean towards other means."""

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from epsilometer.conformance import evidence
from epsilometer.conformance.client_weights import Lean, WeightEstimates
from epsilometer.conformance.evidence_check import Bets, EvidenceCheck, leave_untested
from epsilometer.conformance.round_sums import RoundSums
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.types import FloatArray

_TOLERANCE = 1e-3  # relative, of clipping in the clients' own arithmetic
_CAPS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])  # stakes, in units of the noise
MULTIPLES = (1.25, 2.0, 4.0)
FRACTIONS = (0.0, 0.5, 0.75)
_KINDS = 5  # of shifts that a check bets on, at most
_TIMES = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 32.0])  # by which a client's update counts more


class LeanCheck(EvidenceCheck):
    """Test whether residuals lean towards a mean other than the accounted one.

    A bet on a shift a of Gaussian noise of unknown scale uses the cosine of a and the residual, for
    each array: E exp(λ√d cos) ≤ exp(λ²/2) for random directions. Shifts are sums of updates with
    positive weights: a server that takes less of an update leans away from them, unless updates of
    clients oppose each other.
    """

    def begin(self) -> None:
        """Begin without observations."""
        self._bets, self._information, self._seen = Bets(), 0.0, 0
        self._along: tuple[float, float] = (0.0, 0.0)

    def lean(
        self, ended: RoundSums, shifts: Iterable[FloatArray], number: int, *more: Lean
    ) -> None:
        """Bet on the shifts of a round; pass none if they do not apply.

        Args:
            ended: The round.
            shifts: In units of noise.
            number: Number of the round.
            more: Leans that were computed elsewhere.
        """
        residual = ended.split(ended.residual)
        leans, every = [], list(shifts)
        for shift in every:
            along = 0.0
            for (_, part), (_, noise) in zip(ended.split(shift), residual, strict=True):
                length = float(np.linalg.norm(noise))
                if length:
                    along += math.sqrt(part.size) * float(np.vdot(part, noise)) / length
            leans.append(Lean(along, float(np.vdot(shift, shift))))
        if every:
            longest = max(every, key=lambda shift: float(np.vdot(shift, shift)))
            product = float(np.vdot(longest, ended.residual))
            square = float(np.vdot(longest, longest))
            self._along = self._along[0] + product, self._along[1] + square
        self.bet([*leans, *more], number)

    def bet(self, leans: Sequence[Lean], number: int) -> None:
        """Bet on shifts, given how far the residual of a round leans along each."""
        ratios = []
        for lean in leans:
            norm = math.sqrt(lean.square)
            scale = np.minimum(1.0, _CAPS / norm) if norm else np.zeros(_CAPS.size)
            ratios.append(scale * lean.along - scale**2 * lean.square / 2)
        if ratios:
            largest = max(lean.square for lean in leans)
            self._information += min(largest, float(_CAPS[-1]) ** 2)
            self._seen += 1
            self._bets.add(np.concatenate(ratios), self._seen)
        self.keep_largest(number)

    @property
    def needed(self) -> float:
        """Squared length of shifts below which nothing could have been found."""
        return 2 * (math.log(1 / self._level) + math.log(2 * _KINDS * _CAPS.size))

    def compute_evidence(self) -> float | None:
        """Return the evidence so far; None where nothing could have been found."""
        value = self._bets.value()
        return self.hide_little(value, could_find=self._information >= self.needed)

    def measure(self) -> tuple[float | None, None, None]:
        """Return how much of the longest shift was released."""
        return self.estimate_share(), None, None

    def estimate_share(self) -> float:
        """Return how much of the longest shift was released."""
        product, square = self._along
        return product / square if square else 0.0


class Clipping(LeanCheck):
    """Detect updates that were not clipped, or whose arrays were clipped separately."""

    name = "clipping"
    expected = "every update is clipped to the accounted norm, over all arrays together"
    missing = "the server does not clip, or too few updates were longer than the clipping norm"

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        share = self.estimate_share()
        return f"{share:.2f} of what clipping should have removed was released"


class EqualWeights(LeanCheck):
    """Detect larger weights for clients with more examples than usual."""

    name = "equal weights"
    expected = "every client has the same weight"
    missing = "numbers of examples are equal, nearly so, or not reported"

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        return f"{self.estimate_share():.2f} of what weights by examples would add was released"


class Multiple(LeanCheck):
    """Detect the release of more than the mean; less than the mean is a remark."""

    name = "multiple of the mean"
    expected = "noise is added to the mean itself, no multiple of it"
    missing = "the mean of updates is too short compared with the noise"

    def __init__(self, less: "Fraction", *, level: float) -> None:
        super().__init__(level=level)
        self._less = less

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        least = 1 - self._less.estimate_share()
        if self.deserves_remark() and self.crossed is None:
            return f"{least:.2f} times the mean was released: less of it, or something else"
        return f"{1 + (MULTIPLES[-1] - 1) * self.estimate_share():.2f} times the mean was released"

    def deserves_remark(self) -> bool:
        """Tell whether less than the mean was released."""
        return self._less.crossed is not None


class Fraction(LeanCheck):
    """Detect the release of less than the mean, which leaks less, or of a median, for example."""


class WholeMean(LeanCheck):
    """Detect another average: a median, a trimmed mean, or a mean of short updates only."""

    name = "mean of all updates"
    expected = "the mean of all updates is noised: no median, no mean of short or long ones"
    missing = "too few replies, or too few weights per reply"

    def see(self, found: WeightEstimates | None, number: int) -> None:
        """Take the estimates of a round."""
        self.bet([] if found is None else found.lean_to_means(), number)

    def measure(self) -> tuple[None, None, None]:
        """Return nothing: shifts of several kinds have no common measure."""
        return None, None, None

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        if self.judge(self.log_e) == judge.VIOLATED:
            return "residuals follow a median, a trimmed mean, or a mean of short or long updates"
        return "residuals follow neither a median nor a mean of short or long updates"


class EarlierUpdates(LeanCheck):
    """Detect updates of earlier rounds that are released again, from a buffer or by momentum."""

    name = "updates of earlier rounds"
    expected = "updates count only in their own round"
    missing = "fewer than two rounds, or too few weights per update"

    def see(self, found: WeightEstimates | None, number: int) -> None:
        """Take the estimates of a round."""
        self.bet([] if found is None else found.earlier, number)

    def measure(self) -> tuple[None, None, None]:
        """Return nothing: shifts of two kinds have no common measure."""
        return None, None, None

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        follow = "follow" if self.judge(self.log_e) == judge.VIOLATED else "do not follow"
        return f"residuals {follow} means of earlier rounds"


class NoiseAlong(EvidenceCheck):
    """Detect too little noise in the span of the updates.

    A correct server may leave out parts of updates: this makes residuals longer there, never
    shorter.
    """

    name = "noise along updates"
    expected = "noise of at least the accounted scale in every mixture of updates"
    missing = "too few weights per update"

    def begin(self) -> None:
        """Begin without observations."""
        self._updates, self._means, self._seen = Bets(), Bets(), 0
        self._clients: dict[Hashable, FloatArray] = {}  # logarithms of weighted ratios
        self._count, self._squares, self._least = 0, 0.0, math.inf

    def see(self, ended: RoundSums, found: WeightEstimates | None, number: int) -> None:
        """Add the residual of a round, and its estimates for mixtures of updates."""
        square = float(np.vdot(ended.mean, ended.mean))
        along = float(np.vdot(ended.mean, ended.residual)) ** 2 / square if square else 1.0
        self._seen += 1
        self._means.add(evidence.scale_ratios(1, along), self._seen)
        count, squares = (0, 0.0) if found is None else found.explained
        self._updates.add(evidence.scale_ratios(count, squares), self._seen)
        self._count, self._squares = self._count + count, self._squares + squares
        if found is not None:
            self._see_clients(found)
        self.keep_largest(number)

    def _see_clients(self, found: WeightEstimates) -> None:
        """Bet on too little noise along the updates of one client, the same in all rounds."""
        known = [place for place, client in enumerate(found.clients) if client is not None]
        new = {found.clients[place] for place in known} - set(self._clients)
        weight = -math.log(self._seen * (self._seen + 1) * max(1, len(new)))
        for place in known:
            product, square = found.single[:, place]
            if square > 0:
                ratios = evidence.scale_ratios(1, product**2 / square)
                before = self._clients.get(found.clients[place], weight - math.log(ratios.size))
                self._clients[found.clients[place]] = before + ratios

    def compute_evidence(self) -> float | None:
        """Return the evidence so far; None where nothing could have been found."""
        single = evidence.add_weighted(np.ravel(list(self._clients.values())))
        value = evidence.average([self._updates.value(), self._means.value(), single])
        return self.hide_little(value, could_find=self._count > 0)

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        scale = math.sqrt(self._squares / self._count) if self._count else math.nan
        return f"{scale:.3g} of the accounted scale in mixtures of updates"


class ClientWeight(EvidenceCheck):
    """Detect one client, the same in all rounds, that adds more than it may.

    Clients that first appear in round t share the weight 1/(t(t+1)).
    """

    name = "weight of single clients"
    expected = "no client adds more than the accounted norm"
    missing = "clients are unknown or too few, or updates too short compared with the noise"

    def begin(self) -> None:
        """Begin without observations."""
        self._leans: dict[Hashable, tuple[Lean, float]] = {}  # with the logarithm of a weight
        self._seen = 0

    def see(self, found: WeightEstimates | None, number: int) -> None:
        """Take the estimates of a round."""
        clients = [] if found is None else list(found.list_clients())
        if clients:
            self._seen += 1
            new = {client for client, _ in clients} - set(self._leans)
            weight = -math.log(self._seen * (self._seen + 1) * max(1, len(new)))
            for client, lean in clients:
                before, own = self._leans.get(client, (Lean(0.0, 0.0), weight))
                total = Lean(before.along + lean.along, before.square + lean.square)
                self._leans[client] = total, own
        self.keep_largest(number)

    def compute_evidence(self) -> float | None:
        """Return the evidence so far; None where nothing could have been found."""
        if not self._leans:
            return None
        leans = [lean for lean, _ in self._leans.values()]
        along, square = np.array(leans).T[:, :, None]
        weights = np.array([own for _, own in self._leans.values()])[:, None]
        logs = weights + _TIMES * along - _TIMES**2 * square / 2 - math.log(_TIMES.size)
        # Report only if a client that counts three times could have been found.
        found = 2 * square[:, 0] + weights[:, 0] - math.log(_TIMES.size)
        value = evidence.add_weighted(logs.ravel())
        return self.hide_little(value, could_find=found.max() >= math.log(1 / self._level))

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        heaviest = max((lean for lean, _ in self._leans.values()), key=_rate_lean)
        more = heaviest.along / heaviest.square if heaviest.square else 0.0
        return (
            f"of {len(self._leans):,} clients the heaviest adds {max(0.0, more):.2f} of its "
            "update more than allowed"
        )


def _rate_lean(lean: Lean) -> float:
    return max(0.0, lean.along) ** 2 / lean.square if lean.square else 0.0


class ClippedCount(EvidenceCheck):
    """Detect too little noise on the number of clipped updates, which adapts the norm."""

    name = "noise on the clipped count"
    expected = "the number of clipped updates has the accounted noise"

    def begin(self) -> None:
        """Begin without observations."""
        self._bets, self._squares, self._seen = Bets(), 0.0, 0

    def see(self, residual: float, number: int) -> None:
        """Take the noise of one round, in units of the accounted one."""
        self._squares += residual**2
        self._seen += 1
        self._bets.add(evidence.scale_ratios(1, residual**2), self._seen)
        self.keep_largest(number)

    def compute_evidence(self) -> float | None:
        """Return the evidence so far; None where nothing could have been found."""
        return self._bets.value() if self._seen else None

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        return f"{math.sqrt(self._squares / self._seen):.3g} of the accounted noise"


class ReplyNorms:
    """Compare the norms of replies from clients that clip themselves with the accounted norm."""

    def __init__(self) -> None:
        self._largest: float | None = None
        self._above = self._count = self._first = self._rounds = 0

    def see(self, ended: RoundSums, number: int) -> None:
        """Take the norms of a round."""
        self._rounds = number
        if ended.accounted.clipped_by != "clients" or not ended.norms:
            return
        above = sum(norm > 1 + _TOLERANCE for norm in ended.norms)
        self._above += above
        self._count += len(ended.norms)
        if above and not self._first:
            self._first = number
        self._largest = max(self._largest or 0.0, *ended.norms)

    def check(self) -> Check:
        """Return the observations so far."""
        name, expected = "norms of replies", "replies are no longer than the accounted norm"
        if self._largest is None:
            return leave_untested(name, expected, "the server clips, replies may be longer")
        return Check(
            name=name,
            outcome=judge.judge_limit(self._above, limit=0),
            expected=expected,
            seen=f"{self._above} of {self._count} replies are longer, up to {self._largest:.4g} "
            "clipping norms",
            value=self._largest,
            steps=self._first or self._rounds,
        )
