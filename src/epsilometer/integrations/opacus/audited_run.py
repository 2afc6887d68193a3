"""Audit the optimiser of your normal training run with canaries."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.audits.dpsgd.canary_run import (
    CanaryRun,
    claim_of_steps,
    measure_gradients,
    measure_steps,
    measure_weights,
)
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.claim import Claim, as_claim, warn_of_delta
from epsilometer.core.findings import ConformanceFinding, EpsilonFinding
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.canaries import PlantedCanaries
from epsilometer.integrations.opacus.objects import (
    check_engine,
    check_optimizer,
    count_batches,
    describe_sampler,
    make_audit,
    report_epsilon,
)
from epsilometer.integrations.opacus.run_watch import SHARE, RunWatch

_STRANGE = (
    "The loader's sampler is not one of torch or Opacus: canaries took part as under Poisson "
    "sampling, so the sampler was not tested. check() tests it."
)
_NO_CLAIM = "Opacus reports ε = ∞, as there was a step without noise: this is no claim."


def audited(
    privacy_engine: Any,
    optimizer: Any,
    loader: Any,
    *,
    canaries: int = 500,
    noise: Any = None,
    seed: int = 0,
) -> "Audited":
    """Audit your normal training run; the loop does not change.

    One line after ``make_private``, ``audit = audited(privacy_engine, optimizer, loader)``, and
    ``audit.result(delta=...)`` after the loop. The audit watches whether the run does what its
    accountant books (``audit.conformance``), and adds canaries to it. Each is a random direction in
    the space of the trainable parameters, included by its own fair coin. It takes part in batches
    like the loader's records. Virtual steps, accumulation, ghost clipping, any inner optimiser and
    schedulers keep working.

    Guarantee: that of :meth:`Audited.result`; at most 1 correct run in 1,000 is found violated. The
        privacy of the loader's records is unchanged.
    Assumption: the optimiser's sum before noise is in ``summed_grad``, as in Opacus. With several
        processes, each calls this with the same seed.

    Args:
        privacy_engine: The engine that made the optimiser private; its ε is the default claim.
        optimizer: The ``DPOptimizer`` from ``make_private``.
        loader: The loader that the loop uses.
        canaries: Number of canaries, at most one per parameter; about half are included. With them,
            one run proves an ε of at most about ln(canaries) − 2.
        noise: Declared correlated noise (DP-FTRL, matrix factorisation): a mixing matrix, or
            another argument of ``conformance.whitening.Whitening``. It is whitened before it is
            checked.
        seed: Seed of coins, steps and directions.
    """
    check_engine(privacy_engine, "audited(privacy_engine, optimizer, loader)")
    check_optimizer(optimizer)
    count_batches(loader)
    _validate.whole(2, canaries=canaries)
    _validate.whole(0, seed=seed)
    if hasattr(optimizer.pre_step, "audit"):
        raise InvalidArgument(
            "Expected an optimiser that is not audited yet, got one that is: close() that audit."
        )
    if not optimizer.params:
        raise InvalidArgument("Expected an optimiser with trainable parameters, got none.")
    if len({p.device for p in optimizer.params}) > 1:
        raise InvalidArgument("Expected all parameters on one device, got several.")
    return Audited(privacy_engine, optimizer, loader, canaries=canaries, noise=noise, seed=seed)


class Audited:
    """Watch a training run; made by :func:`audited`.

    Use it directly, or as ``with audited(...) as audit:``, which ends the audit at the end of the
    block. Results are available at any time, and cover the steps so far.
    """

    def __init__(
        self,
        privacy_engine: Any,
        optimizer: Any,
        loader: Any,
        *,
        canaries: int,
        noise: Any,
        seed: int,
    ) -> None:
        self._engine, self._optimizer, self._seed = privacy_engine, optimizer, seed
        self._loader = loader
        self._epsilons: dict[tuple[Any, ...], float] = {}
        self._canaries = PlantedCanaries(
            optimizer.params,
            loader,
            count=min(canaries, sum(p.numel() for p in optimizer.params)),
            seed=seed,
        )
        self._watch = RunWatch(
            privacy_engine,
            optimizer,
            loader,
            canaries=self._canaries,
            noise=noise,
            seed=seed,
        )

    @property
    def included(self) -> NDArray[np.bool_]:
        """Which canaries are included, shape ``(m,)``."""
        return self._canaries.included

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching and adding canaries; restore optimiser and loader."""
        self._watch.close()

    @property
    def steps(self) -> int:
        """Number of steps so far, without those that only accumulate."""
        return self._watch.steps

    @property
    def noise_share(self) -> float:
        """Mean cost per step: the norm of the added canaries relative to that of the noise."""
        return self._canaries.noise_share

    @property
    def conformance(self) -> ConformanceFinding:
        """Whether the run so far did what was accounted for."""
        return self._watch.finding()

    def result(
        self,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
        method: str = "one_run",
    ) -> Audit:
        """Judge the claim for an adversary who sees every noisy gradient, but not the batches.

        In addition to the canaries, the measured noise and sensitivity bound the ε of what ran, for
        an adversary who inserts any gradient.

        Guarantee: refutes a true claim in at most ``1 - confidence`` of audits.
        Assumption: only the claim, with ``one_run``. ``one_run_fdp`` proves more, but only about
            the accounted mechanism, with any noise: full batches, a public order, or Poisson
            sampling. It is rejected if batches are shuffled.

        Args:
            delta: δ of the bound and of the engine's claim; not needed with a ``Claim``.
            claim: The claimed ε, or a ``Claim``; by default the engine's ε at ``delta``.
            confidence: One-sided, of all views together.
            method: ``one_run`` or ``one_run_fdp``; the report also shows the other.
        """
        measure = partial(measure_gradients, method=method)
        request = self._ask(delta, claim, confidence)
        return self._judge(request, [measure], result="result", method=method)

    def step_result(self, *, delta: float, confidence: float = 0.95) -> Audit:
        """Judge clipping and noise for an adversary who also knows the canaries' batches.

        The claim is not the engine's but that of a Gaussian mechanism composed as often as a canary
        took part, since sampling hides nothing from this adversary. A correct optimiser meets it
        exactly; for a wrong one, this view proves by far the most.

        Guarantee: refutes an optimiser that clips and adds noise as declared in at most a fraction
            ``1 - confidence`` of audits.
        """
        request = self._ask(delta, claim_of_steps(self._run(), delta=delta), confidence)

        def measure(
            run: CanaryRun, *, claim: Claim, confidence: float, spent: float, **_: Any
        ) -> EpsilonFinding:
            return measure_steps(run, claim=claim, confidence=confidence, spent=spent)

        return self._judge(request, [measure], result="step_result")

    def final_result(
        self,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
    ) -> Audit:
        """Judge the claim for an adversary who sees only the first and last weights."""
        request = self._ask(delta, claim, confidence)
        return self._judge(request, [measure_weights], result="final_result")

    def report(
        self,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
    ) -> Audit:
        """Judge the claim by :meth:`result` and :meth:`final_result` together.

        Both share the confidence. :meth:`step_result` is judged by a separate claim.
        """
        request = self._ask(delta, claim, confidence)
        return self._judge(request, [measure_gradients, measure_weights], result="report")

    def _run(self) -> CanaryRun:
        if not self._canaries.steps:
            raise InvalidArgument(
                "Expected at least one step of training before a result, saw none. "
                "Train with the optimiser that audited() was given."
            )
        return CanaryRun(
            included=self.included,
            steps=self._canaries.collect_steps(),
            weights=self._canaries.measure_weights(),
            public_order=self._canaries.public_order,
            subject=self._subject,
            caveats=self._caveats(),
            seed=self._seed,
        )

    def _ask(self, delta: float | None, claim: Claim | float | None, confidence: float) -> Request:
        """Return the request, with the engine's own claim if no other is given."""
        _validate.open_unit(confidence=confidence)
        given = as_claim(claim, delta=delta)
        request = Request(claim=given, delta=delta if given is None else given.delta)
        at = request.known_delta
        _validate.open_unit(delta=at)
        epsilon, accountant = self._report(at)
        if given is None and math.isfinite(epsilon):
            given = Claim(epsilon, at, sampler="Poisson", accountant=accountant)
        request = Request(claim=given, delta=at, confidence=confidence, seed=self._seed)
        return replace(request, claim=request.fill_claim(adjacency="add_remove", unit="record"))

    def _report(self, delta: float) -> tuple[float, str]:
        """Return the ε that the engine reports, and the accountant that computed it."""
        accountant = self._engine.accountant
        key = delta, tuple(map(tuple, accountant.history))  # every result needs it again
        if key not in self._epsilons:
            self._epsilons = {key: report_epsilon(accountant, delta)}
        return self._epsilons[key], accountant.mechanism().upper()

    def _account(self, delta: float) -> list[EpsilonEstimate]:
        """Return what the engine reports, which does not affect the verdict."""
        epsilon, accountant = self._report(delta)
        if math.isinf(epsilon):
            return []
        return [
            EpsilonEstimate(
                epsilon=epsilon,
                low=epsilon,
                high=epsilon,
                delta=delta,
                confidence=1.0,
                method="accounting",
                direction="both",
                subject=f"what Opacus reports ({accountant}, Poisson sampling)",
                role="reference",
                adjacency="add_remove",
            )
        ]

    def _judge(
        self, request: Request, measures: Sequence[Callable[..., EpsilonFinding]], **settings: str
    ) -> Audit:
        """Return the audit of all measurements and of conformance.

        Bounds share the error probability; the ε of what ran uses very little of it.
        """
        claim, delta, wrong = request.claim, request.known_delta, 1 - request.confidence
        spent = min(SHARE, wrong / 2)
        seen = self._canaries.steps or not self._watch.seen  # where nothing is, there is no result
        found = [
            measure(
                self._run(),
                delta=delta,
                claim=claim,
                confidence=1 - wrong / len(measures),
                spent=spent / len(measures),
                estimates=self._account(delta),
            )
            for measure in measures
            if seen
        ]
        bound = None  # known batches have a separate claim, without amplification
        if settings["result"] != "step_result":
            bound = self._watch.bound_epsilon(delta=delta, alpha=spent)
        sampler = "unstated" if claim is None else claim.sampler
        return make_audit(
            "audited",
            subject=self._subject,
            claim=claim,
            findings=(*found, self._watch.finding(bound=bound, sampler=sampler)),
            caveats=(_NO_CLAIM,)
            if claim is None
            else warn_of_delta(claim, len(self._loader.dataset), "records"),
            supplied={
                "privacy_engine": self._engine,
                "optimizer": self._optimizer,
                "loader": self._loader,
            },
            settings={"canaries": self.included.size, **settings},
            delta=request.delta,
            confidence=request.confidence,
            seed=request.seed,
        )

    @property
    def _subject(self) -> str:
        inner = type(self._optimizer.original_optimizer).__name__
        return (
            f"Opacus {type(self._optimizer).__name__} of {inner}, {self.steps:,} steps, "
            f"batches by {describe_sampler(self._canaries.sampler)}"
        )

    def _caveats(self) -> tuple[str, ...]:
        lines = [
            f"The part of the canaries in the summed gradient had {self.noise_share:.3g} times "
            "the norm of the noise, on average over all steps."
        ]
        if self._canaries.strange:
            lines.append(_STRANGE)
        if self._watch.lost:
            lines.append(f"Steps skipped because gradients were not finite: {self._watch.lost}.")
        return tuple(lines)
