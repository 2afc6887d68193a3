"""Check the rounds of a server that releases the mean of clipped updates plus Gaussian noise.

A server that sees single replies knows the mean before noise. Its release minus the mean of the
clipped replies is checked like the noise of DP-SGD. Its average is checked by how far this residual
leans towards other means, such as unclipped or weighted ones.
"""

import time
from collections.abc import Hashable, Iterator

import numpy as np

from epsilometer import _validate
from epsilometer.conformance.averages import (
    FRACTIONS,
    MULTIPLES,
    ClientWeight,
    ClippedCount,
    Clipping,
    EarlierUpdates,
    EqualWeights,
    Fraction,
    Multiple,
    NoiseAlong,
    ReplyNorms,
    WholeMean,
)
from epsilometer.conformance.client_weights import Lean, WeightEstimates
from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.conformance.guesses import GuessedNoise
from epsilometer.conformance.noise_checks import LEVEL
from epsilometer.conformance.reused_values import ReusedValues
from epsilometer.conformance.round_sums import AccountedMean, Arrays, RoundSums
from epsilometer.conformance.run_epsilon import bound_epsilon_of_run
from epsilometer.conformance.sent_weights import SentWeights
from epsilometer.conformance.undeclared_rates import UndeclaredRates
from epsilometer.conformance.watch import StepWatch
from epsilometer.core import judge
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.types import FloatArray

SHARE = LEVEL / 8  # of 1 − confidence, for the ε of what ran
_RELEASE = "the mean of clipped updates plus noise"
_LESS = "less of some updates was released than accounted for, so that residuals are not pure noise"
_AFTER = 0.02  # of the level, for noise that is checked once this is known
_RATE = 0.01  # of the level, for limits of an undeclared rate
_SKIPPED = "all rounds"  # name of the check that says which were left out
_OTHER = "clients were sent other weights than were released, which hold unknown noise"
_TOO_LARGE = "noise is correlated, and the model too large to whiten all of it"


class RoundWatch:
    """Watch the successive rounds of a server of any framework.

    Guarantee: at most a fraction ``level`` of correct servers is ever flagged, at any stopping
        time. Checks that could not have found anything are not tested, and say why.
    Assumption: a correct server releases what :class:`AccountedMean` says, or clips more, with
        independent Gaussian noise; single weights are rounded to less than 1/256 of it.

    Args:
        level: Probability of flagging a correct server, for all checks together.

    Memory: six vectors of the model's size and 32 MiB of updates, in addition to
    :class:`StepWatch`.

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
        self._replaced: StepWatch | None = None  # of residuals without mixtures of updates
        self._places: list[int] = []  # of arrays that are large enough for that
        share = level / 14  # half of the level is for the noise, and there are six of these
        self._clipping = Clipping(level=share)
        self._weights = EqualWeights(level=share)
        self._fraction = Fraction(level=share)  # a remark, which takes no share
        self._multiple = Multiple(self._fraction, level=share)
        self._count = ClippedCount(level=share)
        self._whole = WholeMean(level=share)
        self._clients = ClientWeight(level=share)
        less = share / 3  # and three of these
        self._earlier, self._along = EarlierUpdates(level=less), NoiseAlong(level=less)
        self._means: list[FloatArray] = []  # of the round before, and of all so far
        self._sent = SentWeights(level=less)
        self._still: dict[str, None] = {}  # arrays that were not released in some round
        self._bare: dict[str, None] = {}  # arrays that changed, and are not compared
        # None of these has an error probability.
        self._replies, self._guessed, self._reused = ReplyNorms(), GuessedNoise(), ReusedValues()
        self._usual: float | None = None  # examples of a reply of the round before
        self._blurred = ""  # why residuals are not independent of the updates of a round
        self._rates = UndeclaredRates()
        self._open: RoundSums | None = None
        self._began = 0.0  # start of the open round, by the clock
        self._skipped: dict[str, int] = {}

    def begin(
        self, sent: Arrays, accounted: AccountedMean, *, usual_examples: float | None = None
    ) -> None:
        """Begin a round.

        Args:
            sent: The weights that clients received. Floating-point arrays are checked.
            accounted: What is accounted for in this round.
            usual_examples: The mean number of examples of the expected replies, if known; by
                default that of the previous round.
        """
        self._sent.drop()  # before other vectors are made
        usual = self._usual if usual_examples is None else usual_examples
        self._began = time.time()
        self._open = RoundSums(sent, accounted, usual_examples=usual)
        if self._noise is None:
            level = self._level * (0.5 - _AFTER - 2 * _RATE)
            self._noise = StepWatch(level=level, noise=accounted.noise)

    def add(
        self,
        reply: Arrays,
        *,
        examples: float | None = None,
        canary: bool = False,
        client: Hashable | None = None,
    ) -> None:
        """Add a reply: the client's weights after training.

        Args:
            reply: Its arrays, with the names of those that were sent.
            examples: Its number of examples, if it has one.
            canary: Whether it is a canary's, whose norm says nothing.
            client: Which client sent it, if clients may return: needed to detect that one client
                counts more.
        """
        if self._open is not None:
            self._open.add(reply, examples, canary=canary, client=client)

    def see_sent(self, arrays: Arrays) -> None:
        """Add weights that clients receive between two rounds, to train or to evaluate."""
        self._sent.see(arrays)

    def skip(self, reason: str) -> None:
        """Skip the open round, or the next one, for a stated reason."""
        self._open = None
        self._sent.drop()
        self._skipped[reason] = self._skipped.get(reason, 0) + 1

    @property
    def clipped(self) -> int:
        """Number of updates of the open round that are longer than the clipping norm."""
        return 0 if self._open is None else self._open.clipped

    def see_count(self, residual: float) -> None:
        """Add the noise on the number of clipped updates, in units of the accounted noise."""
        self._count.see(residual, self.rounds + 1)

    def end(self, released: Arrays, *, same_client: bool = False) -> None:
        """Add the server's release at the end of the round.

        Args:
            released: The new weights.
            same_client: Whether one client, always the same, is known to have taken part (because
                all did, for example), so that sampling does not amplify. The ε of what ran is that
                of these rounds.
        """
        if self._open is None or self._noise is None:
            return
        ended, self._open = self._open, None
        reason = ended.close(released, number=self.rounds + 1)
        if reason:
            self.skip(reason)
            return
        if ended.leaves_all(released):  # nothing leaks, as nothing was released
            return
        self.rounds += 1
        self._still |= dict.fromkeys(ended.unreleased)
        self._check_round(ended, self._noise, same_client=same_client)
        ended.shrink()
        self._sent.hold(ended, released, self.rounds)
        self._bare.update(dict.fromkeys(ended.list_bare(released)))

    def _check_round(self, ended: RoundSums, noise: StepWatch, *, same_client: bool) -> None:
        """Check the release of a finished round."""
        sigma = ended.accounted.noise_multiplier
        self._usual = ended.usual_examples
        alpha = self._level * _RATE / (self.rounds * (self.rounds + 1))
        if self._rates.see(ended, alpha):  # another rate than 1: noise is checked beside updates
            self._replies.see(ended, self.rounds)
            self._guessed.see(ended.split(ended.residual), began=self._began)
            self._compare_means(ended)
            self._see_replaced(ended, scale=self._rates.spread)
            return
        white = noise.see(
            ended.split(ended.residual),
            noise_multiplier=sigma,
            rate=1.0 if same_client and not ended.still.any() else None,
        )
        self._replies.see(ended, self.rounds)
        if white is None:
            self._blurred = _TOO_LARGE
            return
        ended.residual = np.concatenate([np.ravel(part) for part in white])
        self._guessed.see(ended.split(ended.residual), began=self._began)
        self._reused.see(ended.split(ended.residual), resolution=ended.resolution)
        self._along.see(ended, self._compare_means(ended), self.rounds)
        self._look_beside_mixtures(ended)

    def _look_beside_mixtures(self, ended: RoundSums) -> None:
        """Check noise outside the span of updates, once a server is known to use less of them.

        It may be correct: it may clip more, or leave out replies. What it leaves out is similar in
        all rounds, and is not noise.
        """
        less = self._fraction.crossed is not None
        if less and self._noise is not None:
            self._noise.distrust(_LESS)
        own = ended.accounted
        if own.noise is not None:  # whitened residuals include earlier rounds
            return
        if less or own.server_rate is None:  # then a later round, of another rate, is compared
            self._see_replaced(ended)

    def _see_replaced(self, ended: RoundSums, *, scale: float = 1.0) -> None:
        """Check residuals with fresh noise instead of mixtures of updates, times a scale."""
        first, own = self._replaced is None, np.random.default_rng([self.rounds, 0, 0, 5])
        found = ended.sample.replace_mixtures(scale * ended.residual, own)
        places = [] if found is None else [place for place, _ in found]
        if found and (first or places == self._places):
            if self._replaced is None:
                self._replaced = StepWatch(level=self._level * _AFTER)
                self._places = places
            arrays = [(name, part.shape) for name, part in ended.split(ended.residual)]
            self._replaced.see(
                [(arrays[place][0], part.reshape(arrays[place][1])) for place, part in found]
            )

    def _compare_means(self, ended: RoundSums) -> WeightEstimates | None:
        """Test a residual that is independent of what clients sent for other means."""
        number, own = self.rounds, ended.accounted
        found = ended.sample.compare(
            ended.residual, most=1 / own.noise_multiplier, earlier=self._means
        )
        if own.noise is None:  # otherwise residuals are whitened, and include earlier rounds
            self._earlier.see(found, number)
            now = ended.mean.astype(np.float32)
            self._means = [now, now + self._means[1] if self._means else now]
        if own.clipped_by == "server":
            layers = Lean(0.0, 0.0) if found is None else found.lean_to_layers()
            self._clipping.lean(ended, [ended.shift(ended.raw)], number, layers)
        heavier = [] if ended.heavier is None else [ended.heavier / ended.unit]
        self._weights.lean(ended, heavier, number)
        shift = ended.mean / ended.unit
        self._multiple.lean(ended, [(by - 1) * shift for by in MULTIPLES], number)
        self._fraction.lean(ended, [(by - 1) * shift for by in FRACTIONS], number)
        self._whole.see(found, number)
        self._clients.see(found, number)
        return found

    def _describe_still(self) -> Iterator[Check]:
        """Yield which arrays were not released, and so not checked, in some round."""
        if self._still:
            names = _validate.listed(self._still)
            reason = f"equal to what was sent; other checks have fresh noise instead: {names}"
            yield leave_untested(
                "arrays that were not released", "all that changes is noised", reason
            )

    def _describe_bare(self) -> Iterator[Check]:
        """Yield arrays that changed although no noise is accounted for them."""
        if self._bare:
            names = _validate.listed(self._bare)
            reason = f"integers, or declared to be left out, and changed: {names}"
            yield leave_untested("arrays without noise", "all that changes is noised", reason)

    def bound_epsilon(self, *, delta: float, alpha: float) -> EpsilonLowerBound | None:
        """Return the ε of the measured noise; None if no client is known to take part.

        Args:
            delta: δ.
            alpha: Error probability.
        """
        groups = () if self._noise is None else self._noise.group_noise()
        if not groups:
            return None
        return bound_epsilon_of_run(groups, delta=delta, confidence=1 - alpha)

    def share_confidence(
        self, confidence: float, *, delta: float, parts: int = 1
    ) -> tuple[EpsilonLowerBound | None, float]:
        """Return the ε of what ran, and the confidence left for all other bounds.

        Args:
            confidence: Confidence of all bounds together.
            delta: δ.
            parts: Number of parts of a run that was killed and resumed: each part uses less.
        """
        spent = min(SHARE, (1 - confidence) / 2)
        bound = self.bound_epsilon(delta=delta, alpha=spent / (parts * (parts + 1)))
        return bound, confidence if bound is None else confidence + spent

    def finding(self, *more: Check, bound: EpsilonLowerBound | None = None) -> ConformanceFinding:
        """Return the finding so far.

        Args:
            more: Further checks of the same run.
            bound: The ε of what ran, from :meth:`bound_epsilon`.
        """
        reasons = tuple(
            leave_untested(
                _SKIPPED if place == 0 else f"{_SKIPPED} ({place + 1})",
                f"every round releases {_RELEASE}",
                f"{_count(number)} left out: {reason}",
            )
            for place, (reason, number) in enumerate(self._skipped.items())
        )
        if self._noise is None or not self.rounds:
            missing = leave_untested("noise scale", _RELEASE, "no round could be compared")
            return ConformanceFinding(checks=(missing, *reasons, *more), steps=0, level=self._level)
        found = self._noise.finding(
            self._clipping.check(drift=self._blurred),
            self._replies.check(),
            self._weights.check(drift=self._blurred),
            self._multiple.check(drift=self._blurred),
            self._whole.check(drift=self._blurred),
            self._clients.check(drift=self._blurred),
            self._earlier.check(drift=self._blurred),
            self._along.check(drift=self._blurred),
            self._guessed.check(),
            self._reused.check(),
            self._sent.check(),
            *self._describe_still(),
            *self._describe_bare(),
            *((self._count.check(),) if self._count.log_e is not None else ()),
            *reasons,
            *more,
        )
        checks = found.checks
        if self._replaced is not None:
            later = {check.name: check for check in self._replaced.finding().checks}
            checks = tuple(_choose_check(check, later.get(check.name)) for check in checks)
        checks = self._rates.judge(checks, needed=self._multiple.needed)
        if self._sent.other and not any(check.outcome == judge.VIOLATED for check in checks):
            checks = tuple(leave_untested(check.name, check.expected, _OTHER) for check in checks)
        return ConformanceFinding(checks=checks, steps=self.rounds, level=self._level, bound=bound)


def has_gaussian_noise(finding: ConformanceFinding) -> bool:
    """Tell whether all rounds were checked, and no check contradicts Gaussian noise."""
    outcomes = {check.name: check.outcome for check in finding.checks}
    checked = all(not name.startswith(_SKIPPED) for name in outcomes)
    gaussian = outcomes.get("noise shape") == judge.CONFORMS
    return checked and gaussian and finding.verdict == judge.CONFORMS


def _choose_check(raw: Check, replaced: Check | None) -> Check:
    """Return a check outside the span of updates, if only that is informative."""
    if replaced is None:
        return raw
    found = raw.outcome == judge.NOT_TESTED or replaced.outcome == judge.VIOLATED
    return replaced if found else raw


def _count(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"
