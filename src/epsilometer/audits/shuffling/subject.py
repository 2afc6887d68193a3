"""Audit shuffled DP-SGD: by theory, by the exact accountant, and by the distinguishing game."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from dataclasses import replace as change
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec.structs import replace

from epsilometer import _validate
from epsilometer.accounting import pld
from epsilometer.accounting.shuffle import (
    published_epsilon,
    setting_in_words,
    shuffle_curve,
    shuffle_epsilon,
    shuffle_noise,
)
from epsilometer.accounting.shuffle_upper import shuffle_upper, sufficient_noise
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.findings import Curve, EpsilonFinding, SamplerFinding, SamplerNoise
from epsilometer.engine.engines import InProcess
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done
from epsilometer.engine.runs import Program, RunsJob, check_until, choose_block
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.batched_gaussian import BatchedGaussian
from epsilometer.sampling.samplers import (
    BallsInBins,
    Law,
    Poisson,
    Sampler,
    Shuffle,
    find_law,
    label_sampler,
)
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.score_finding import make_finding, measure_growth
from epsilometer.stats.thresholds import AllRanks, Observed, Published
from epsilometer.types import FloatArray

_DRAWS = 6e8  # normal numbers that the game draws by default: some seconds
_KEPT = 20_000_000  # trials whose scores are kept individually; more are counted at thresholds
_THRESHOLDS = 400
_ADVERSARY = (
    "sees the noisy sum of every step, and chose all other records so that the target stands out"
)


@dataclass(frozen=True, eq=False)
class ShuffledSGD:
    """Audit DP-SGD that shuffles its batches but is accounted as Poisson-sampled.

    The sampler's ε is computed, from below and from above, and part of it is proved by simulating
    the distinguishing game.

    Guarantee: the computed bound and the simulated one are lower bounds on the sampler's ε. The
        first holds by computation, the second with the confidence of the audit. The upper bound
        holds for all data, and is the smallest proved for the sampler: see
        ``accounting.shuffle_upper``.
    Assumption: epochs are sampled independently; a record's neighbour is the same record zeroed
        out. Claims are about the worst case, so what the strongest adversary achieves refutes them.

    Attributes:
        noise_multiplier: Standard deviation of the noise in units of the clipping norm.
        steps: Batches per epoch.
        epochs: Number of passes over all records.
        sampler: How batches are actually drawn, from :mod:`epsilometer.samplers`; ``Shuffle()`` by
            default.
        batch_size: Needed for ``PartialShuffle`` and ``BatchThenShuffle``.
        observations: Trials of the game, half with the record; by default, what takes seconds.
            Above 20 million they are counted at thresholds fixed beforehand.
        device: Where trials are simulated: ``"cpu"`` or ``"cuda"``.
        title: What was audited, in words; by default sampler, steps, epochs and noise.

    Example:
        >>> import epsilometer as em
        >>> training = em.ShuffledSGD(noise_multiplier=1.0, steps=100, observations=2000)
        >>> claim = training.accounted_claim(delta=1e-5)
        >>> audit = em.audit(training, claim)
        >>> round(claim.epsilon, 2), round(audit.epsilon, 2), round(audit.upper, 2), audit.verdict
        (0.72, 4.07, 4.38, 'refuted')
    """

    noise_multiplier: float
    steps: int
    epochs: int = 1
    _: KW_ONLY
    sampler: Sampler | None = None
    batch_size: int | None = None
    observations: int | None = None
    device: str = "cpu"
    title: str = ""

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier)
        _validate.whole(1, steps=self.steps, epochs=self.epochs)
        _validate.whole(1, batch_size=1 if self.batch_size is None else self.batch_size)
        _validate.whole(4, observations=4 if self.observations is None else self.observations)

    def accounted_claim(self, delta: float) -> Claim:
        """Return what accounting by Poisson sampling reports for these settings.

        Args:
            delta: δ of the claim.

        Example:
            >>> ShuffledSGD(noise_multiplier=1.0, steps=100).accounted_claim(1e-5).sampler
            'Poisson'
        """
        epsilon = pld.poisson_epsilon(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=1 / self.steps,
            steps=self.steps * self.epochs,
            delta=delta,
            adjacency="zero_out",
        )
        how = {"sampler": "Poisson", "accountant": "PLD"}
        return Claim(epsilon, delta, adjacency="zero_out", unit="record", **how)


SUBJECTS = (ShuffledSGD,)


def run_audit(subject: ShuffledSGD, request: Request) -> Audit:
    """Bound the sampler's ε by computation and by the game, and judge the claim by both."""
    delta = request.known_delta
    _validate.open_unit(delta=delta)
    claim = _fill_claim(request)
    request = change(request, claim=claim)  # stored in full, so that a replay uses it
    game = _make_game(subject, claim, delta=delta, confidence=request.confidence, seed=request.seed)
    if request.until is None:
        return Audit(
            subject=game.subject,
            claim=claim,
            findings=(game.play(_count_trials(subject)), game.sampling),
            provenance=request.make_provenance(subject),
        )
    runs = _count_trials(subject) // 2
    block = choose_block(runs)
    check_until(request, also=(), blocks=-(-runs // block))
    job = _WatchedGame(
        plan=request.make_plan(subject, units=-(-runs // block), block=block, runs=runs),
        subject=game.subject,
        claim=claim,
        programs=(
            Program(
                play=game.mechanism.play,
                subject=game.subject,
                adversary=_ADVERSARY,
                curves=game.curves,
            ),
        ),
        runs=runs,
        block=block,
        delta=delta,
        confidence=request.confidence,
        until=request.until,
        game=game,
    )
    return request.execute(job, usual=InProcess())


@dataclass(frozen=True, kw_only=True)
class _Game:
    """Hold the distinguishing game, and the contents of its finding."""

    mechanism: BatchedGaussian
    subject: str
    claim: Claim | None
    delta: float
    confidence: float
    seed: int
    estimates: tuple[EpsilonEstimate, ...]
    curves: tuple[Curve, ...]
    sampling: SamplerFinding

    def play(self, trials: int) -> EpsilonFinding:
        """Run all trials; add the paper's own bound to the valid one, marked as invalid."""
        rng = np.random.default_rng(self.seed)
        runs = trials // 2
        scores: Observed
        if trials <= _KEPT:
            scores = self.mechanism.play(runs, rng)
        else:
            scores = self.mechanism.count(runs, rng, thresholds=self._thresholds())

        def bound(part: Observed, rule: AllRanks | Published) -> EpsilonLowerBound:
            return epsilon_lower_bound(
                part,
                delta=self.delta,
                confidence=self.confidence,
                rule=rule,
                seed=self.seed,
                adjacency="zero_out",
                adversary=_ADVERSARY,
            )

        def prove(part: Observed) -> float:
            return bounds[0].epsilon if part is scores else bound(part, AllRanks()).epsilon

        bounds = [bound(scores, rule) for rule in (AllRanks(), Published())]
        return make_finding(
            scores,
            bounds,
            prove=prove,
            claim=self.claim,
            subject=self.subject,
            growth=measure_growth(scores, prove, seed=self.seed, in_order=True),
            estimates=self.estimates,
            curves=self.curves,
        )

    def _thresholds(self) -> FloatArray:
        """Fix thresholds before the game, from a small game with other random numbers."""
        stream = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1,)))
        pilot = self.mechanism.play(20_000, stream)
        ends = np.concatenate([pilot.inside, pilot.outside])
        spread = float(np.ptp(ends))
        return np.linspace(ends.min() - spread, ends.max() + 2 * spread, _THRESHOLDS)


@dataclass(frozen=True, kw_only=True)
class _WatchedGame(RunsJob):
    """Run the game until a stopping rule ends it."""

    game: _Game

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit: the simulated finding and the computed one."""
        (found,) = self.findings(units, done)
        found = replace(
            found,
            estimates=self.game.estimates,
            power=None if self.claim is None else self.claim.epsilon,  # ε is computed
        )
        return Audit(
            subject=self.subject,
            claim=self.claim,
            findings=(found, self.game.sampling),
            provenance=done.provenance,
        )


def _fill_claim(request: Request) -> Claim | None:
    claim = request.fill_claim(
        adjacency="zero_out", unit="record", sampler="Poisson", accountant="PLD"
    )
    if claim is not None and claim.adjacency != "zero_out":
        raise InvalidArgument(
            "Expected a claim for adjacency='zero_out', whose ε is known where batches are "
            f"shuffled, got one for {claim.adjacency!r}: an ε for one says nothing about the other."
        )
    return claim


def _make_game(
    subject: ShuffledSGD, claim: Claim | None, *, delta: float, confidence: float, seed: int
) -> _Game:
    """Compute everything that needs no trials, and return the game."""
    sampler = Shuffle() if subject.sampler is None else subject.sampler
    noise, steps, epochs = subject.noise_multiplier, subject.steps, subject.epochs
    mechanism = BatchedGaussian(
        sampler=sampler,
        noise_multiplier=noise,
        steps=steps,
        epochs=epochs,
        batch_size=1 if subject.batch_size is None else subject.batch_size,
        device=subject.device,
    )
    exact = shuffle_epsilon(
        noise_multiplier=noise,
        steps=steps,
        epochs=epochs,
        delta=delta,
        sampler=sampler,
        batch_size=subject.batch_size,
    )
    accounted = subject.accounted_claim(delta).epsilon
    setting: dict[str, Any] = {"noise_multiplier": noise, "steps": steps, "epochs": epochs}
    needed = enough = None
    remedies: tuple[SamplerNoise, ...] = ()
    if claim is not None:
        wanted: dict[str, Any] = {
            "epsilon": claim.epsilon,
            "delta": delta,
            "steps": steps,
            "epochs": epochs,
        }
        needed = shuffle_noise(**wanted, sampler=sampler, batch_size=subject.batch_size)
        enough = sufficient_noise(**wanted, sampler=sampler, batch_size=subject.batch_size)
        remedies = _compare_samplers(sampler, enough, {**wanted, "near": noise})
    law = find_law(sampler, steps, subject.batch_size)
    once = epochs == 1 and law == Law(steps=steps, absent=1)  # as the published bound assumes
    return _Game(
        mechanism=mechanism,
        subject=subject.title or f"DP-SGD with {exact.subject}",
        claim=claim,
        delta=delta,
        confidence=confidence,
        seed=seed,
        estimates=(
            exact,
            shuffle_upper(**setting, delta=delta, sampler=sampler, batch_size=subject.batch_size),
            _describe_accounted(subject, accounted, delta),
        ),
        curves=_curves(mechanism),
        sampling=SamplerFinding(
            sampler=exact.subject.partition(",")[0],
            accounted_epsilon=accounted,
            needed_noise=needed,
            sufficient_noise=enough,
            remedies=remedies,
            balls_in_bins=shuffle_upper(**setting, delta=delta, sampler=BallsInBins()),
            published=published_epsilon(noise_multiplier=noise, steps=steps, delta=delta)
            if once
            else 0.0,
        ),
    )


def _compare_samplers(
    sampler: Sampler, enough: float, wanted: Mapping[str, Any]
) -> tuple[SamplerNoise, ...]:
    """List samplers by the noise that satisfies the claim, the smallest first."""
    noises = {label_sampler(sampler): enough}
    for other in (BallsInBins(), Poisson()):
        if label_sampler(other) not in noises:
            noises[label_sampler(other)] = sufficient_noise(**wanted, sampler=other)
    ranked = sorted(noises.items(), key=itemgetter(1))
    return tuple(SamplerNoise(sampler=name, noise=noise) for name, noise in ranked)


def _describe_accounted(subject: ShuffledSGD, epsilon: float, delta: float) -> EpsilonEstimate:
    """Return the ε that Poisson accounting reports, which is that of another sampler."""
    return EpsilonEstimate(
        epsilon=epsilon,
        low=epsilon,
        high=epsilon,
        delta=delta,
        confidence=1.0,
        method="PLD",
        direction="both",
        subject=_word_setting(subject, Poisson()),
        role="reference",
        adjacency="zero_out",
        cites=("doroshenko2022",),
        basis=(
            ("noise multiplier", subject.noise_multiplier),
            ("sampling rate", 1 / subject.steps),
            ("steps", subject.steps * subject.epochs),
        ),
    )


def _word_setting(subject: ShuffledSGD, sampler: Sampler) -> str:
    return setting_in_words(sampler, subject.noise_multiplier, subject.steps, subject.epochs)


def _count_trials(subject: ShuffledSGD) -> int:
    if subject.observations is not None:
        return subject.observations
    return 2 * int(np.clip(_DRAWS / (subject.steps * subject.epochs) / 2, 2_000, 5_000_000))


def _curves(mechanism: BatchedGaussian) -> tuple[Curve, ...]:
    """Return the trade-off curves of Poisson accounting and of the best attack."""
    fpr = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 140)])
    steps, epochs = mechanism.steps, mechanism.epochs
    poisson = pld.poisson_curve(
        fpr,
        noise_multiplier=mechanism.noise_multiplier,
        sampling_rate=1 / steps,
        steps=steps * epochs,
        adjacency="zero_out",
    )
    exact = shuffle_curve(
        fpr,
        noise_multiplier=mechanism.noise_multiplier,
        steps=steps,
        epochs=epochs,
        sampler=mechanism.sampler,
        batch_size=mechanism.batch_size,
    )
    return (_curve("PLD of Poisson sampling", fpr, poisson), _curve("exact", fpr, exact))


def _curve(name: str, fpr: FloatArray, fnr: FloatArray) -> Curve:
    rates = [tuple(float(f"{rate:.6g}") for rate in part) for part in (fpr, np.clip(fnr, 0, 1))]
    return Curve(name=name, fpr=rates[0], fnr=rates[1])
