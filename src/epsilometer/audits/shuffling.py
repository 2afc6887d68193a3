"""What does shuffling really leak? Theory, the exact accountant, and the distinguishing game."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from epsilometer import _validate
from epsilometer.accounting import pld
from epsilometer.accounting.shuffle import (
    published_epsilon,
    shuffle_curve,
    shuffle_epsilon,
    shuffle_noise,
)
from epsilometer.attacks.likelihood_ratio import one_of
from epsilometer.audits.evidence import growth
from epsilometer.audits.runs import Until, audit_runs
from epsilometer.audits.scores import judged
from epsilometer.core.claim import Claim
from epsilometer.engine.engines import Engine, InProcess
from epsilometer.engine.events import Listener
from epsilometer.engine.plan import versions
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.batched_gaussian import BatchedGaussian
from epsilometer.mechanisms.samplers import BallsInBins, Sampler, Shuffle
from epsilometer.observations import Scores
from epsilometer.core.audit import AuditResult, Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.findings import Curve
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.gaussians import gaussian_epsilon
from epsilometer.stats.thresholds import Best, Observed, RankGrid
from epsilometer.types import FloatArray

_SHUFFLE = Shuffle()
_IN_PROCESS = InProcess()
_DRAWS = 6e8  # normal numbers that the game takes by default: some seconds
_KEPT = 20_000_000  # plays whose scores are kept one by one; more are counted at thresholds
_THRESHOLDS = 400
_ADVERSARY = (
    "sees the noisy sum of every step, knows all other records, and chose them to stand out"
)


@dataclass(frozen=True, kw_only=True)
class ShufflingAudit:
    """What shuffling leaks, beside what was reported.

    Attributes:
        result: The game, judged against the report, with the exact ε beside it.
        poisson_epsilon: What accounting by Poisson sampling reports.
        exact: The ε that the sampler has at least.
        needed_noise: Noise below which the claim is certainly false with this sampler.
        balls_in_bins: The ε of the same noise with balls in bins.
        deterministic_epsilon: The ε if batches were not shuffled at all.
        published: The lower bound of Chua et al. for one epoch of shuffling; 0 for more epochs or
            other samplers, for which it is not stated.
    """

    result: AuditResult
    poisson_epsilon: float
    exact: EpsilonEstimate
    needed_noise: float
    balls_in_bins: EpsilonEstimate
    deterministic_epsilon: float
    published: float


def audit_shuffling(
    *,
    noise_multiplier: float,
    steps: int,
    epochs: int = 1,
    delta: float,
    claim: float | None = None,
    sampler: Sampler = _SHUFFLE,
    batch_size: int | None = None,
    observations: int | None = None,
    confidence: float = 0.95,
    until: Until | None = None,
    seed: int = 0,
    device: str = "cpu",
    command: str | None = None,
    directory: Path | str | None = None,
    engine: Engine = _IN_PROCESS,
    listen: Sequence[Listener] = (),
) -> ShufflingAudit:
    """Computes what a sampler leaks, and proves part of it by playing the game.

    Guarantees: ``exact.low`` and the game's bound are lower bounds on the sampler's ε; the first by
        computation, the second with ``confidence``.
    Assumes: epochs are sampled independently. Claims are about the worst case, so what the
        strongest adversary can do refutes them.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the clipping norm.
        steps: Batches an epoch.
        epochs: Epochs.
        delta: δ.
        claim: The ε that was reported; by default what accounting by Poisson sampling gives.
        sampler: How batches are really drawn.
        batch_size: Needed for ``PartialShuffle`` and ``BatchThenShuffle``.
        observations: Plays of the game, half with the record; by default what seconds allow. Above
            20 million they are counted at thresholds fixed beforehand.
        confidence: One-sided confidence of the game's bound.
        until: When to stop the game early.
        seed: Of the game.
        device: Where the game is played: ``"cpu"`` or ``"cuda"``.
        command: The command or call that does it again; by default this call.
        directory: Where the game's run lives if it may stop early.
        engine: What plays it then.
        listen: Who is told what happens then.

    Example:
        >>> audit = audit_shuffling(noise_multiplier=1.0, steps=100, delta=1e-5, observations=2000)
        >>> round(audit.poisson_epsilon, 2), round(audit.exact.epsilon, 2), audit.result.verdict
        (0.72, 4.07, 'refuted')
    """
    _validate.open_unit(delta=delta)
    exact = shuffle_epsilon(
        noise_multiplier=noise_multiplier,
        steps=steps,
        epochs=epochs,
        delta=delta,
        sampler=sampler,
        batch_size=batch_size,
    )
    poisson = pld.poisson_epsilon(
        noise_multiplier=noise_multiplier,
        sampling_rate=1 / steps,
        steps=steps * epochs,
        delta=delta,
        adjacency="zero_out",
    )
    promised = Claim(
        epsilon=poisson if claim is None else claim,
        delta=delta,
        adjacency="zero_out",
        sampler="Poisson",
        accountant="PLD",
    )
    mechanism = BatchedGaussian(
        sampler=sampler,
        noise_multiplier=noise_multiplier,
        steps=steps,
        epochs=epochs,
        batch_size=1 if batch_size is None else batch_size,
        device=device,
    )
    call = f"audit_shuffling({noise_multiplier=}, {steps=}, {epochs=}, {delta=}, {seed=})"
    game = _Game(
        mechanism=mechanism,
        claim=promised,
        confidence=confidence,
        seed=seed,
        exact=exact,
        curves=_curves(mechanism),
        provenance=Provenance(command=command or call, versions=versions()),
    )
    plays = _plays(observations, steps * epochs)
    if until is None:
        result = game.played(plays)
    else:
        result = game.watched(plays, until, directory=directory, engine=engine, listen=listen)
    return ShufflingAudit(
        result=result,
        poisson_epsilon=poisson,
        exact=exact,
        needed_noise=shuffle_noise(
            epsilon=promised.epsilon,
            delta=delta,
            steps=steps,
            epochs=epochs,
            sampler=sampler,
            batch_size=batch_size,
        ),
        balls_in_bins=shuffle_epsilon(
            noise_multiplier=noise_multiplier,
            steps=steps,
            epochs=epochs,
            delta=delta,
            sampler=BallsInBins(),
        ),
        deterministic_epsilon=gaussian_epsilon(noise_multiplier / math.sqrt(epochs), delta),
        published=published_epsilon(noise_multiplier=noise_multiplier, steps=steps, delta=delta)
        if epochs == 1 and isinstance(sampler, Shuffle)
        else 0.0,
    )


def audit_buffer(
    *,
    noise_multiplier: float,
    steps: int,
    delta: float,
    buffer: int,
    guesses: Sequence[int],
    runs: int,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[EpsilonLowerBound, int]:
    """Bounds ε of one epoch shuffled within a buffer that the adversary must guess.

    Every guess looks at the first batches only, as many as it holds the buffer to be; guesses are
    paid for: each gets its share of the error, and the best bound holds with ``confidence``.

    Args:
        noise_multiplier: σ.
        steps: Batches of the epoch.
        delta: δ.
        buffer: Batches within which the target is really shuffled.
        guesses: Numbers of batches to try.
        runs: Runs with the record, and as many without.
        confidence: One-sided, for the best of the guesses.
        seed: Of the runs.

    Returns:
        The best bound, and the guess that gave it.
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.whole(1, steps=steps, buffer=buffer, runs=runs)
    if not guesses or not all(1 <= guess <= steps for guess in guesses):
        raise InvalidArgument(f"Expected guesses from 1 to {steps} batches, got {list(guesses)}.")
    rng = np.random.default_rng(seed)
    inside, outside = (
        _first_batches(noise_multiplier, steps, min(buffer, steps), mean, guesses, runs, rng)
        for mean in (2, 1)
    )
    bounds = [
        epsilon_lower_bound(
            Scores(inside=inside[:, i], outside=outside[:, i]),
            delta=delta,
            confidence=1 - (1 - confidence) / len(guesses),
            seed=seed,
            adjacency="zero_out",
            adversary=f"{_ADVERSARY}; guesses the buffer",
        )
        for i in range(len(guesses))
    ]
    best = max(range(len(guesses)), key=lambda i: bounds[i].epsilon)
    return replace(bounds[best], confidence=confidence), guesses[best]


def _first_batches(
    sigma: float,
    steps: int,
    buffer: int,
    mean: int,
    guesses: Sequence[int],
    runs: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Log-likelihood ratios by the first batches alone, for every guess, shape (runs, guesses)."""
    blocks = []
    for start in range(0, runs, 10_000):
        count = min(10_000, runs - start)
        x = sigma * rng.standard_normal((count, steps))
        x[np.arange(count), rng.integers(0, buffer, count)] += mean
        blocks.append(
            np.stack(
                [
                    one_of(x[:, None, :guess], sigma=sigma, present=2.0, absent=1.0)
                    for guess in guesses
                ],
                axis=1,
            )
        )
    return np.concatenate(blocks)


@dataclass(frozen=True, kw_only=True)
class _Game:
    """The distinguishing game, and all that its result is to say."""

    mechanism: BatchedGaussian
    claim: Claim
    confidence: float
    seed: int
    exact: EpsilonEstimate
    curves: tuple[Curve, ...]
    provenance: Provenance

    @property
    def subject(self) -> str:
        return f"DP-SGD by {self.exact.subject}"

    def played(self, plays: int) -> AuditResult:
        """All plays; the paper's own bound stands beside the valid one, and says that it is not."""
        rng = np.random.default_rng(self.seed)
        runs = plays // 2
        scores: Observed
        if plays <= _KEPT:
            scores = self.mechanism.play(runs, rng)
        else:
            scores = self.mechanism.count(runs, rng, thresholds=self._thresholds())
        bounds = [
            epsilon_lower_bound(
                scores,
                delta=self.claim.delta,
                confidence=self.confidence,
                rule=rule,
                seed=self.seed,
                adjacency="zero_out",
                adversary=_ADVERSARY,
            )
            for rule in (RankGrid(), Best())
        ]
        return self._judged(scores, bounds)

    def watched(
        self,
        plays: int,
        until: Until,
        *,
        directory: Path | str | None,
        engine: Engine,
        listen: Sequence[Listener],
    ) -> AuditResult:
        """Plays until a rule says that it is enough."""
        result = audit_runs(
            self.mechanism.play,
            runs=plays // 2,
            delta=self.claim.delta,
            claim=self.claim,
            confidence=self.confidence,
            until=until,
            seed=self.seed,
            subject=self.subject,
            adversary=_ADVERSARY,
            curves=self.curves,
            parameters={"mechanism": repr(self.mechanism)},
            directory=directory,
            engine=engine,
            listen=listen,
        )
        return replace(result, estimates=(self.exact,))

    def _judged(self, scores: Observed, bounds: Sequence[EpsilonLowerBound]) -> AuditResult:
        def part(some: Scores) -> float:
            return epsilon_lower_bound(
                some, delta=self.claim.delta, confidence=self.confidence
            ).epsilon

        return judged(
            scores,
            bounds,
            claim=self.claim,
            subject=self.subject,
            growth=growth(scores, part, seed=self.seed, in_order=True),
            estimates=(self.exact,),
            curves=self.curves,
            provenance=self.provenance,
        )

    def _thresholds(self) -> FloatArray:
        """Fixed before the plays: over the losses of a small game with other numbers."""
        stream = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1,)))
        pilot = self.mechanism.play(20_000, stream)
        ends = np.concatenate([pilot.inside, pilot.outside])
        spread = float(np.ptp(ends))
        return np.linspace(ends.min() - spread, ends.max() + 2 * spread, _THRESHOLDS)


def _plays(observations: int | None, draws: int) -> int:
    if observations is None:
        return 2 * int(np.clip(_DRAWS / draws / 2, 2_000, 5_000_000))
    _validate.whole(4, observations=observations)
    return observations


def _curves(mechanism: BatchedGaussian) -> tuple[Curve, ...]:
    """What Poisson accounting allows, and what the best attack reaches."""
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
