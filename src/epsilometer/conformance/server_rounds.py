"""Check the rounds of a server that releases the mean of clipped updates plus Gaussian noise.

A server that sees single replies knows what its noise was added to. What it released less the mean
of the clipped replies is checked like the noise of DP-SGD. What it averaged is checked by how much
that residual leans towards other means: of updates that were not clipped, of weighted ones.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.conformance import evidence
from epsilometer.conformance.evidence_check import Bets, EvidenceCheck, leave_untested
from epsilometer.conformance.noise_checks import LEVEL
from epsilometer.conformance.run_epsilon import bound_epsilon_of_run
from epsilometer.conformance.watch import StepWatch
from epsilometer.core import judge
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
SHARE = LEVEL / 8  # of the level, for each check of what was averaged
_TOLERANCE = 1e-3  # relative, of clipping in the clients' own arithmetic
_COARSE = 1 / 256  # of the noise: rounding of single weights above it hides what is averaged
_CAPS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])  # stakes, in units of the noise
_MULTIPLES = (1.25, 2.0, 4.0)
_FRACTIONS = (0.0, 0.5, 0.75)
_RELEASE = "the mean of clipped updates plus noise"


@dataclass(frozen=True, kw_only=True)
class AccountedMean:
    """The release of a round that was accounted for: a mean of clipped updates plus noise.

    The server is accounted to release ``sent + server_rate · (Σᵢ wᵢ clip(updateᵢ) + noise)``.
    Noise has the standard deviation ``noise_multiplier · clip_norm · max wᵢ`` in every coordinate.

    Attributes:
        noise_multiplier: σ, in units of what one client may add.
        clip_norm: C, of a client's whole update; or one norm per array, by its name.
        clients: By what the sum is divided, where that is fixed; None for the number of replies.
        weights: ``equal``, or ``examples`` where updates weigh by their numbers of examples.
        clipped_by: ``server``, or ``clients`` where their replies are clipped already.
        server_rate: By what the noisy mean is multiplied.
        noise: Correlated noise that is declared, as of ``conformance.whitening.Whitening``.
        without: Patterns of names of arrays that are neither clipped nor released with noise.

    Example:
        >>> AccountedMean(noise_multiplier=1.0, clip_norm=0.5).norm
        0.5
    """

    noise_multiplier: float
    clip_norm: float | Mapping[str, float]
    clients: int | None = None
    weights: Literal["equal", "examples"] = "equal"
    clipped_by: Literal["server", "clients"] = "server"
    server_rate: float = 1.0
    noise: Any = None
    without: Sequence[str] = ()

    def __post_init__(self) -> None:
        _validate.at_least(0, noise_multiplier=self.noise_multiplier)
        norms = self.clip_norm
        named = dict(norms) if isinstance(norms, Mapping) else {"clip_norm": norms}
        _validate.positive(server_rate=self.server_rate, **named)
        if self.clients is not None:
            _validate.whole(1, clients=self.clients)
        for name, choices in (
            ("weights", ("equal", "examples")),
            ("clipped_by", ("server", "clients")),
        ):
            if getattr(self, name) not in choices:
                raise InvalidArgument(
                    f"Expected {name} to be one of {', '.join(choices)}, "
                    f"got {getattr(self, name)!r}."
                )

    @property
    def norm(self) -> float:
        """The largest norm of a client's whole update."""
        if isinstance(self.clip_norm, Mapping):
            return math.hypot(*self.clip_norm.values())
        return float(self.clip_norm)


class RoundWatch:
    """Watch the rounds of a server, one after the other; any framework may call it.

    Guarantee: at most a share ``level`` of right servers is ever accused, whenever the run is
        stopped. Checks that could not have found anything are not tested, and say why.
    Assumption: a right server releases what :class:`AccountedMean` says, with independent Gaussian
        noise; rounding of single weights is finer than 1/256 of the noise.

    Args:
        level: Chance of accusing a right server, for all checks together.

    Memory: five vectors as long as the model, beside what :class:`StepWatch` keeps.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> watch = RoundWatch()
        >>> model = {"weight": np.zeros((40, 50))}
        >>> for _ in range(8):
        ...     watch.begin(model, AccountedMean(noise_multiplier=1.0, clip_norm=1.0))
        ...     updates = rng.normal(size=(20, 40, 50)) / 10  # norms of about 4.5
        ...     for update in updates:
        ...         watch.add({"weight": model["weight"] + update})
        ...     noise = rng.normal(size=(40, 50)) / 20
        ...     model = {"weight": model["weight"] + updates.mean(axis=0) + noise}  # no clipping
        ...     watch.end(model)
        >>> watch.finding().verdict, watch.finding().check("clipping").outcome
        ('violated', 'violated')
    """

    def __init__(self, *, level: float = LEVEL) -> None:
        self.rounds, self._level = 0, level
        self._noise: StepWatch | None = None
        share = level / 8
        self._clipping = _Clipping(level=share)
        self._weights = _Weights(level=share)
        self._fraction = _Fraction(level=share)  # a remark, which takes no share
        self._multiple = _Multiple(self._fraction, level=share)
        self._count = _ClippedCount(level=share)
        self._replies = _ReplyNorms()
        self._open: _Round | None = None
        self._skipped: dict[str, int] = {}

    def begin(self, sent: Arrays, accounted: AccountedMean) -> None:
        """Begin a round.

        Args:
            sent: The weights that clients were sent. Floating-point arrays are checked.
            accounted: What is accounted for in this round.
        """
        self._open = _Round(sent, accounted)
        if self._noise is None:
            self._noise = StepWatch(level=self._level / 2, noise=accounted.noise)

    def add(self, reply: Arrays, *, examples: float | None = None, canary: bool = False) -> None:
        """Take a reply: the client's weights after training.

        Args:
            reply: Its arrays, named as those that were sent.
            examples: Its number of examples, where it says one.
            canary: Whether it stands for no real client, whose norm says nothing.
        """
        if self._open is not None:
            self._open.add(reply, examples, canary=canary)

    def skip(self, reason: str) -> None:
        """Give up the round that is open, or the next one, for a reason in words."""
        self._open = None
        self._skipped[reason] = self._skipped.get(reason, 0) + 1

    @property
    def clipped(self) -> int:
        """How many updates of the open round are longer than the clipping norm."""
        return 0 if self._open is None else self._open.clipped

    def see_count(self, residual: float) -> None:
        """Take the noise on the number of clipped updates, in units of the accounted one."""
        self._count.see(residual, self.rounds + 1)

    def end(self, released: Arrays, *, same_client: bool = False) -> None:
        """Take what the server released at the end of the round.

        Args:
            released: The new weights.
            same_client: Whether one client, the same in all rounds that say so, is known to have
                taken part, so that no sampling amplifies: where everybody took part, say. The ε of
                what ran is that of these rounds.
        """
        if self._open is None or self._noise is None:
            return
        ended, self._open = self._open, None
        reason = ended.close(released)
        if reason:
            self.skip(reason)
            return
        self.rounds += 1
        own, sigma = ended.accounted, ended.accounted.noise_multiplier
        self._noise.see(
            ended.split(ended.residual),
            noise_multiplier=sigma,
            rate=1.0 if same_client else None,
        )
        self._replies.see(ended, self.rounds)
        clipped_here = own.clipped_by == "server"
        others = [ended.shift(ended.raw), ended.shift(ended.by_layer)] if clipped_here else []
        self._clipping.lean(ended, others, self.rounds)
        weighted = ended.weighted
        equal = own.weights == "equal" and weighted is not None
        self._weights.lean(ended, [ended.shift(weighted)] if equal else [], self.rounds)
        shift = ended.mean / ended.unit
        self._multiple.lean(ended, [(by - 1) * shift for by in _MULTIPLES], self.rounds)
        self._fraction.lean(ended, [(by - 1) * shift for by in _FRACTIONS], self.rounds)

    def bound_epsilon(self, *, delta: float, alpha: float) -> EpsilonLowerBound | None:
        """Return the ε of the noise that was measured; None where nobody is known to take part.

        Args:
            delta: δ.
            alpha: Chance of being wrong.
        """
        groups = () if self._noise is None else self._noise.group_noise()
        if not groups:
            return None
        return bound_epsilon_of_run(groups, delta=delta, confidence=1 - alpha)

    def share_confidence(
        self, confidence: float, *, delta: float, parts: int = 1
    ) -> tuple[EpsilonLowerBound | None, float]:
        """Return the ε of what ran, and the confidence that is left for all other bounds.

        Args:
            confidence: Of all bounds together.
            delta: δ.
            parts: How often a run was begun that was killed: each part spends less.
        """
        spent = min(SHARE, (1 - confidence) / 2)
        bound = self.bound_epsilon(delta=delta, alpha=spent / (parts * (parts + 1)))
        return bound, confidence if bound is None else confidence + spent

    def finding(self, *more: Check, bound: EpsilonLowerBound | None = None) -> ConformanceFinding:
        """Return what was found so far.

        Args:
            more: Checks that others made of the same run.
            bound: The ε of what ran, as of :meth:`bound_epsilon`.
        """
        reasons = tuple(
            leave_untested(
                "all rounds" if place == 0 else f"all rounds ({place + 1})",
                f"every round releases {_RELEASE}",
                f"{_count(number)} left out: {reason}",
            )
            for place, (reason, number) in enumerate(self._skipped.items())
        )
        if self._noise is None or not self.rounds:
            missing = leave_untested("noise scale", _RELEASE, "no round could be compared")
            return ConformanceFinding(checks=(missing, *reasons, *more), steps=0, level=self._level)
        found = self._noise.finding(
            self._clipping.check(),
            self._replies.check(),
            self._weights.check(),
            self._multiple.check(),
            *((self._count.check(),) if self._count.log_e is not None else ()),
            *reasons,
            *more,
        )
        return ConformanceFinding(
            checks=found.checks, steps=self.rounds, level=self._level, bound=bound
        )


class _Round:
    """One round: sums of the replies, each averaged in several ways, as vectors."""

    def __init__(self, sent: Arrays, accounted: AccountedMean) -> None:
        self.accounted = accounted
        self._shapes = {
            name: np.shape(value)
            for name, value in self._keep(sent)
            if value.dtype.kind == "f" and value.size
        }
        self._sent = {name: np.asarray(value, np.float64) for name, value in self._keep(sent)}
        self._spacing = max(
            (float(np.spacing(np.abs(sent[name]).max())) for name in self._shapes), default=0.0
        )
        size = sum(math.prod(shape) for shape in self._shapes.values())
        self._clipped, self._raw, self._layers, self._weighted = np.zeros((4, size))
        self.replies, self.clipped, self._examples, self._most = 0, 0, 0.0, 0.0
        self._counted = True
        self._reason = "" if size else "no floating-point arrays"
        self.norms: list[float] = []  # of real clients

    def add(self, reply: Arrays, examples: float | None, *, canary: bool) -> None:
        """Add a reply to all sums."""
        reply = dict(self._keep(reply))
        if set(reply) != set(self._sent) or any(
            np.shape(reply[name]) != value.shape for name, value in self._sent.items()
        ):
            self._reason = "replies have other arrays than were sent"
            return
        update = {
            name: np.asarray(reply[name], np.float64) - own for name, own in self._sent.items()
        }
        square = {name: float(np.sum(part**2)) for name, part in update.items()}
        norm = math.sqrt(sum(square.values()))
        if not math.isfinite(norm):
            self._reason = "a reply was not finite"
            return
        limits = self.accounted.clip_norm
        if isinstance(limits, Mapping):
            if missing := set(self._shapes) - set(limits):
                self._reason = f"no clipping norm is accounted for {min(missing)!r}"
                return
            factors = {name: _find_factor(limits.get(name, 0.0), square[name]) for name in update}
        else:
            factors = dict.fromkeys(update, _find_factor(limits, norm**2))
        most = self.accounted.norm
        clipped = self._join({name: factors[name] * part for name, part in update.items()})
        if self.accounted.clipped_by == "clients":  # what they send is averaged as it is
            clipped = self._join(update)
        self._clipped += clipped
        self._raw += self._join(update)
        self._layers += self._join(
            {name: _find_factor(most, square[name]) * part for name, part in update.items()}
        )
        self.replies += 1
        self.clipped += norm > most
        self._counted &= examples is not None and examples > 0
        self._weighted += (examples or 0.0) * clipped
        self._examples += examples or 0.0
        self._most = max(self._most, examples or 0.0)
        if not canary:  # rounding may have made a reply longer than it was clipped to
            rounding = self._spacing * math.sqrt(self._clipped.size)
            self.norms.append(max(0.0, norm - rounding) / most)

    def close(self, released: Arrays) -> str:
        """Compute the residual; return why the round cannot be compared, or an empty text."""
        own = self.accounted
        by_examples = own.weights == "examples"
        if own.noise_multiplier == 0:
            return "no noise is accounted for"
        if self._reason or not self.replies:
            return self._reason or "there was no reply"
        if by_examples and not self._counted:
            return "replies do not say their numbers of examples"
        if any(
            name not in released or np.shape(released[name]) != shape
            for name, shape in self._shapes.items()
        ):
            return "what was released has other arrays than were sent"
        divisor = own.clients or self.replies
        share = self._most / self._examples if by_examples else 1 / divisor
        self.unit = own.noise_multiplier * own.norm * share
        if self._spacing > _COARSE * self.unit * own.server_rate:
            return "weights are rounded to more than 1/256 of the accounted noise"
        self.mean = self._weighted / self._examples if by_examples else self._clipped / divisor
        self.raw, self.by_layer = self._raw / divisor, self._layers / divisor
        self.weighted = self._weighted / self._examples if self._counted else None
        moved = {
            name: np.asarray(released[name], np.float64) - self._sent[name] for name in self._shapes
        }
        self.residual = (self._join(moved) / own.server_rate - self.mean) / self.unit
        return "" if np.isfinite(self.residual).all() else "what was released is not finite"

    def shift(self, other: FloatArray | None) -> FloatArray:
        """Return where the residual would be centred had another mean been taken."""
        assert other is not None
        return (other - self.mean) / self.unit

    def split(self, vector: FloatArray) -> list[tuple[str, FloatArray]]:
        """Return a vector by arrays."""
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(vector, ends[:-1])
        return [
            (name, part.reshape(shape))
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        ]

    def _keep(self, arrays: Arrays) -> Iterable[tuple[str, NDArray[Any]]]:
        odd = self.accounted.without
        return [pair for pair in arrays.items() if not any(fnmatchcase(pair[0], p) for p in odd)]

    def _join(self, arrays: Arrays) -> FloatArray:
        return np.concatenate([np.ravel(arrays[name]) for name in self._shapes])


class _Lean(EvidenceCheck):
    """Whether residuals lean towards another mean than the accounted one.

    A bet on a shift a of Gaussian noise of unknown scale uses the cosine of a and the residual,
    array by array: E exp(λ√d cos) ≤ exp(λ²/2) for random directions.
    """

    def begin(self) -> None:
        self._bets, self._information, self._seen = Bets(), 0.0, 0
        self._along: tuple[float, float] = (0.0, 0.0)

    def lean(self, ended: _Round, shifts: Iterable[FloatArray], number: int) -> None:
        """Take the shifts of a round that are bet on; none where they do not apply."""
        ratios, largest = [], 0.0
        residual = ended.split(ended.residual)
        for shift in shifts:
            norm = float(np.linalg.norm(shift))
            scale = np.minimum(1.0, _CAPS / norm) if norm else np.zeros(_CAPS.size)
            logs = np.zeros(_CAPS.size)
            for (_, part), (_, noise) in zip(ended.split(shift), residual, strict=True):
                stake, length = float(np.linalg.norm(part)), float(np.linalg.norm(noise))
                if stake == 0:
                    continue
                cosine = float(np.vdot(part, noise)) / (stake * length) if length else 0.0
                logs += scale * stake * math.sqrt(part.size) * cosine - (scale * stake) ** 2 / 2
            ratios.append(logs)
            if norm > largest:
                largest = norm
                along = float(np.vdot(shift, ended.residual)) / norm
                self._along = self._along[0] + along * norm, self._along[1] + norm**2
        if ratios:
            self._information += min(largest, float(_CAPS[-1])) ** 2
            self._seen += 1
            self._bets.add(np.concatenate(ratios), self._seen)
        self.keep_largest(number)

    def compute_evidence(self) -> float | None:
        # Below this much nothing could have been found, and nothing is said.
        needed = 2 * (math.log(1 / SHARE) + math.log(2 * len(_MULTIPLES) * _CAPS.size))
        return self._bets.value() if self._information >= needed else None

    def measure(self) -> tuple[float, None, None]:
        product, square = self._along
        return (product / square if square else 0.0), None, None


class _Clipping(_Lean):
    name = "clipping"
    expected = "every update is clipped to the accounted norm, over all arrays together"
    missing = "the server does not clip, or too few updates were longer than the clipping norm"

    def describe(self) -> str:
        share = self.measure()[0]
        return f"{share:.2f} of what clipping should have taken off was released"


class _Weights(_Lean):
    name = "equal weights"
    expected = "every client has the same weight"
    missing = "numbers of examples are equal, nearly so, or not said"

    def describe(self) -> str:
        return f"{self.measure()[0]:.2f} of what weights by examples would add was released"


class _Multiple(_Lean):
    name = "multiple of the mean"
    expected = "noise is added to the mean itself, no multiple of it"
    missing = "the mean of updates is too short beside the noise"

    def __init__(self, less: "_Fraction", *, level: float) -> None:
        super().__init__(level=level)
        self._less = less

    def describe(self) -> str:
        least = 1 - self._less.measure()[0]
        if self.deserves_remark() and self.crossed is None:
            return f"{least:.2f} times the mean was released: less of it, or something else"
        return f"{1 + (_MULTIPLES[-1] - 1) * self.measure()[0]:.2f} times the mean was released"

    def deserves_remark(self) -> bool:
        return self._less.crossed is not None


class _Fraction(_Lean):
    """Less than the mean was released, which leaks less; or a median, say, was."""


class _ClippedCount(EvidenceCheck):
    """Too little noise on the number of clipped updates, by which the norm is adapted."""

    name = "noise on the clipped count"
    expected = "the number of clipped updates has the accounted noise"

    def begin(self) -> None:
        self._bets, self._squares, self._seen = Bets(), 0.0, 0

    def see(self, residual: float, number: int) -> None:
        """Take the noise of one round, in units of the accounted one."""
        self._squares += residual**2
        self._seen += 1
        self._bets.add(evidence.scale_ratios(1, residual**2), self._seen)
        self.keep_largest(number)

    def compute_evidence(self) -> float | None:
        return self._bets.value() if self._seen else None

    def describe(self) -> str:
        return f"{math.sqrt(self._squares / self._seen):.3g} of the accounted noise"


class _ReplyNorms:
    """Norms of the replies of clients that clip themselves, beside the accounted norm."""

    def __init__(self) -> None:
        self._largest: float | None = None
        self._above = self._count = self._first = self._rounds = 0

    def see(self, ended: _Round, number: int) -> None:
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
        """Return what was seen so far."""
        name, expected = "norms of replies", "replies are no longer than the accounted norm"
        if self._largest is None:
            return leave_untested(name, expected, "the server clips, replies may be longer")
        return Check(
            name=name,
            outcome=judge.judge_limit(self._above, limit=0),
            expected=expected,
            seen=f"{self._above} of {self._count} replies are longer, {self._largest:.4g} clipping "
            "norms at most",
            value=self._largest,
            steps=self._first or self._rounds,
        )


def _find_factor(limit: float, square: float) -> float:
    """Return by what a part of a squared norm is multiplied to keep a limit."""
    return min(1.0, limit / math.sqrt(square)) if square else 1.0


def _count(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"
