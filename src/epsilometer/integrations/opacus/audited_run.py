"""Audit the optimiser of a training run by canaries in the run that is done anyway."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.attacks.canary_steps import CanarySteps
from epsilometer.audits.canary_run import (
    CanaryRun,
    claim_of_steps,
    measure_gradients,
    measure_steps,
    measure_weights,
)
from epsilometer.canaries.schedule import Schedule
from epsilometer.canaries.sphere import SphereCanaries
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.claim import Claim, as_claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.engine.environment import versions
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.objects import (
    batches_of,
    check_optimizer,
    in_words,
    is_engine,
    is_ghost,
    reported_epsilon,
    sampler_of,
)
from epsilometer.mechanisms.samplers import Poisson, Sequential, Shuffle
from epsilometer.types import FloatArray

_LOUD = 10.0  # norm of a planted gradient in clipping norms: clipping is under test too
_WAITING = 2**24  # floats of gradients that wait to be compared with all canaries at once: 64 MiB
_GHOST = (
    "Ghost clipping has no gradients of single records, so the canaries were added to the clipped "
    "sum, at the clipping norm: whether it clips was not under test."
)
_STRANGE = (
    "The loader's sampler is none of torch's or Opacus's own: canaries took part as under Poisson "
    "sampling, so the sampler was not under test. check() watches it."
)
_NO_CLAIM = "Opacus reports ε = ∞, as there was a step without noise: that claims nothing."


def audited(
    privacy_engine: Any,
    optimizer: Any,
    loader: Any,
    *,
    canaries: int = 500,
    seed: int = 0,
) -> "Audited":
    """Plant canaries in the one training run that is done anyway; the loop stays as it is.

    One line after ``make_private``, ``audit = audited(privacy_engine, optimizer, loader)``, and
    ``audit.result(delta=...)`` after the loop. Every canary is a random direction in the space of
    the trainable parameters, planted or not by its own fair coin. A planted one is a record: it
    joins batches as the loader's records do, as a row of ``grad_sample`` of ten times the clipping
    norm. Virtual steps, gradient accumulation, ghost clipping, any inner optimiser and schedulers
    keep working.

    Guarantee: that of :meth:`Audited.result`; the records of the loader are as private as before.
    Assumption: one process; canaries are few beside the parameters (a tenth is a good rule), or
        they drown each other, which costs power and never validity.

    Args:
        privacy_engine: The engine that made the optimiser private; says what is claimed.
        optimizer: The ``DPOptimizer`` that ``make_private`` returned.
        loader: The loader that ``make_private`` returned.
        canaries: How many, half of them planted. One run proves an ε of about ln(canaries) − 2
            at most.
        seed: Of coins, batches and directions.
    """
    if not is_engine(privacy_engine):
        raise InvalidArgument(
            f"Expected a PrivacyEngine first, got {type(privacy_engine).__name__}: "
            "audited(privacy_engine, optimizer, loader)."
        )
    check_optimizer(optimizer)
    batches_of(loader)
    _validate.whole(2, canaries=canaries)
    _validate.whole(0, seed=seed)
    if isinstance(getattr(optimizer.pre_step, "__self__", None), Audited):
        raise InvalidArgument(
            "Expected an optimiser that is not audited yet, got one that is: close() that audit."
        )
    if not optimizer.params:
        raise InvalidArgument("Expected an optimiser with trainable parameters, got none.")
    return Audited(privacy_engine, optimizer, loader, canaries=canaries, seed=seed)


class Audited:
    """An audit that watches a training run; made by :func:`audited`.

    It may simply be kept, or be used as ``with audited(...) as audit:``, which stops planting at
    the end of the block. Results may be asked for at any time, and are about the steps so far.

    Attributes:
        included: Which canaries are planted, shape ``(m,)``.
    """

    def __init__(
        self, privacy_engine: Any, optimizer: Any, loader: Any, *, canaries: int, seed: int
    ) -> None:
        self._engine, self._optimizer, self._seed = privacy_engine, optimizer, seed
        self._loader = type(loader).__name__
        self._ghost = is_ghost(optimizer)
        coins, batches, directions = np.random.default_rng(seed).spawn(3)
        self.included: NDArray[np.bool_] = coins.random(canaries) < 0.5
        sampler = sampler_of(loader)
        self._strange = sampler is None
        self._schedule = Schedule(
            count=canaries,
            batches=len(loader),
            sampler=sampler or Poisson(rate=1 / len(loader)),
            rng=batches,
        )
        self._start = _flat(optimizer.params).clone()
        self._canaries = SphereCanaries(
            count=canaries,
            dimension=self._start.numel(),
            key=int(directions.integers(2**63)),
        )
        # What the other canaries add in a canary's direction, half of them being planted: known
        # beforehand, and half the variance of what they really add.
        everybody = self._canaries.inject(np.arange(canaries), 0.5)
        self._crosstalk = self._canaries.dots(everybody) - 0.5
        self._others: Any = None  # what the records of this step add, if all is right
        self._waiting: list[NDArray[np.float32]] = []
        self._seen: list[FloatArray] = []
        self._took: list[NDArray[np.bool_]] = []
        self._rest: list[tuple[float, float, int, float]] = []  # noise, chance, epoch, share
        self._lost = 0
        self._pre_step = optimizer.pre_step
        optimizer.pre_step = self._watched_step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Plants no more; the optimiser is as it was."""
        if getattr(self._optimizer.__dict__.get("pre_step"), "__self__", None) is self:
            del self._optimizer.pre_step

    @property
    def steps(self) -> int:
        """Steps seen so far; those that only accumulate are none."""
        return len(self._took)

    @property
    def noise_share(self) -> float:
        """What the audit costs: the norm of what is planted over that of the noise, mean of all."""
        return float(np.mean([share for *_, share in self._rest])) if self._rest else 0.0

    def result(
        self,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
        method: str = "one_run",
    ) -> Audit:
        """Judge the claim by who sees every noisy gradient and does not know the batches.

        Guarantee: refutes a true claim in at most ``1 - confidence`` of audits.
        Assumption: no more than the claim, with ``one_run``. ``one_run_fdp`` proves more, but
            assumes a Gaussian trade-off curve: it is taken where every record is in every step
            (rate 1), or their order is public, and refused elsewhere.

        Args:
            delta: δ of the bound and of the engine's claim; not needed beside a ``Claim``.
            claim: The claimed ε, or a ``Claim``; by default what the engine reports at ``delta``.
            confidence: One-sided; what it costs to look at several views is paid.
            method: ``one_run`` or ``one_run_fdp``; the other is shown beside it.
        """
        request = self._ask(delta, claim, confidence)
        found = measure_gradients(
            self._run(),
            delta=request.known_delta,
            claim=request.claim,
            confidence=confidence,
            method=method,
            estimates=self._account(request.known_delta),
        )
        return self._make_audit(request, [found], result="result", method=method)

    def step_result(self, *, delta: float, confidence: float = 0.95) -> Audit:
        """Judge clipping and noise themselves, by who also knows the canaries' batches.

        The claim is not the engine's but that of a Gaussian mechanism taken as often as a canary
        took part, since sampling hides nothing from this adversary. A right optimiser meets it
        exactly, and against a wrong one this finds by far the most.

        Guarantee: refutes an optimiser that clips and adds noise as it says in at most
            ``1 - confidence`` of audits.
        """
        run = self._run()
        request = self._ask(delta, claim_of_steps(run, delta=delta), confidence)
        assert request.claim is not None  # as given
        found = measure_steps(run, claim=request.claim, confidence=confidence)
        return self._make_audit(request, [found], result="step_result")

    def final_result(
        self,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
    ) -> Audit:
        """Judge the claim by who sees the first and the last weights only; see :meth:`result`."""
        request = self._ask(delta, claim, confidence)
        found = measure_weights(
            self._run(),
            delta=request.known_delta,
            claim=request.claim,
            confidence=confidence,
            estimates=self._account(request.known_delta),
        )
        return self._make_audit(request, [found], result="final_result")

    def report(
        self,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
    ) -> Audit:
        """Judge the claim by :meth:`result` and :meth:`final_result` together.

        Both share the confidence. :meth:`step_result` is judged by a claim of its own.
        """
        request = self._ask(delta, claim, confidence)
        run, each = self._run(), 1 - (1 - confidence) / 2
        at = request.known_delta
        estimates = self._account(at)
        found = [
            measure(run, delta=at, claim=request.claim, confidence=each, estimates=estimates)
            for measure in (measure_gradients, measure_weights)
        ]
        return self._make_audit(request, found, result="report")

    def _watched_step(self, closure: Any = None) -> Any:
        """The optimiser's own ``pre_step``, with canaries in its batch and eyes on its gradient."""
        optimizer = self._optimizer
        self._add_others()
        if optimizer._check_skip_next_step(pop_next=False):
            return self._pre_step(closure)
        clip, noise = float(optimizer.max_grad_norm), float(optimizer.noise_multiplier)
        batches = int(optimizer.accumulated_iterations)
        epoch, chance = self._schedule.epoch, self._schedule.chance(batches)
        took = self._schedule.step(batches)
        planted = self._plant(np.flatnonzero(took & self.included), clip)
        try:
            done = self._pre_step(closure)
        except Exception:  # gradients that were not cleared, say: the step did not happen
            self._others = None
            raise
        scale = 1.0
        if optimizer.loss_reduction == "mean":
            scale = float(optimizer.expected_batch_size) * batches
        shown = _flat([p.grad for p in optimizer.params]) * scale - self._others
        finite = bool(shown.isfinite().all())
        self._lost += not finite
        self._waiting.append((shown / clip).numpy() if finite else np.zeros(shown.numel(), "f"))
        self._took.append(took)
        loudness = noise * math.sqrt(self._start.numel())
        self._rest.append((noise, chance, epoch, planted / loudness if loudness else math.inf))
        self._others = None
        if len(self._waiting) * shown.numel() >= _WAITING or len(self._waiting) >= 32:
            self._compare()
        return done

    def _compare(self) -> None:
        """Compares the gradients that wait with all canaries."""
        if self._waiting:
            since = self._rest[-len(self._waiting) :]
            expected = np.array([chance for _, chance, _, _ in since])[:, None] * self._crosstalk
            self._seen.extend(self._canaries.dots(np.stack(self._waiting)) - expected)
            self._waiting.clear()

    def _add_others(self) -> None:
        """Adds what the records of this physical batch contribute if all is right."""
        optimizer = self._optimizer
        if self._ghost:
            sums = [_flat([p.grad for p in optimizer.params])]
        else:
            norms = getattr(optimizer, "max_grad_norms", optimizer.max_grad_norm)
            every = zip(*(_parts(p.grad_sample) for p in optimizer.params), strict=True)
            sums = [_flat(_clipped_sums(parts, norms)) for parts in every]
        for part in sums:
            self._others = part if self._others is None else self._others + part

    def _plant(self, chosen: NDArray[np.intp], clip: float) -> float:
        """Puts these canaries into the batch; returns the norm of their sum, in clipping norms."""
        import torch

        if chosen.size == 0:
            return 0.0
        rows = self._canaries.rows(chosen)
        total, start = rows.sum(axis=0), 0
        for p in self._optimizer.params:
            part = slice(start, start + p.numel())
            start += p.numel()
            if self._ghost:
                added = torch.from_numpy(total[part] * np.float32(clip)).to(p.grad)
                p.grad = p.grad + added.view_as(p)
                continue
            parts = _parts(p.grad_sample)
            loud = torch.from_numpy(rows[:, part] * np.float32(_LOUD * clip)).to(parts[-1])
            parts = [*parts[:-1], torch.cat([parts[-1], loud.view(-1, *p.shape)])]
            p.grad_sample = parts if isinstance(p.grad_sample, list) else parts[0]
        return float(np.linalg.norm(total))

    def _run(self) -> CanaryRun:
        self._compare()
        if not self._seen:
            raise InvalidArgument(
                "Expected at least one step of training before a result, saw none. "
                "Train with the optimiser that audited() was given."
            )
        noise, chances, epoch, _ = zip(*self._rest, strict=True)
        chance = np.array(chances)
        planted = chance / 2 * (1 - chance / 2)  # variance of a canary's being in a step
        sampler = self._schedule.sampler
        moved = (_flat(self._optimizer.params) - self._start).numpy()
        return CanaryRun(
            included=self.included,
            steps=CanarySteps(
                seen=np.stack(self._seen),
                took=np.stack(self._took),
                noise=np.array(noise),
                chance=chance,
                blur=np.sqrt(planted * self.included.size / self._start.numel()),
                epoch=np.array(epoch) if isinstance(sampler, Shuffle) else None,
            ),
            weights=-self._canaries.dots(np.nan_to_num(moved, posinf=0.0, neginf=0.0)),
            public_order=isinstance(sampler, Sequential),
            subject=self._subject,
            caveats=self._caveats(),
            seed=self._seed,
        )

    def _ask(self, delta: float | None, claim: Claim | float | None, confidence: float) -> Request:
        """Return what is asked, with the engine's own claim where no other is given."""
        _validate.open_unit(confidence=confidence)
        given = as_claim(claim, delta=delta)
        request = Request(claim=given, delta=delta if given is None else given.delta)
        at = request.known_delta
        _validate.open_unit(delta=at)
        epsilon, accountant = self._reported(at)
        if given is None and math.isfinite(epsilon):
            given = Claim(epsilon, at, sampler="Poisson", accountant=accountant)
        request = Request(claim=given, delta=at, confidence=confidence, seed=self._seed)
        return replace(request, claim=request.fill_claim(adjacency="add_remove"))

    def _reported(self, delta: float) -> tuple[float, str]:
        """Return the ε that the engine reports, and the accountant that computed it."""
        accountant = self._engine.accountant
        return reported_epsilon(accountant, delta), accountant.mechanism().upper()

    def _account(self, delta: float) -> list[EpsilonEstimate]:
        """Return what the engine reports, which decides nothing by itself."""
        epsilon, accountant = self._reported(delta)
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

    def _make_audit(
        self, request: Request, findings: Sequence[EpsilonFinding], **settings: str
    ) -> Audit:
        """Return the audit; what was audited must be supplied to do it again."""
        unclaimed = request.claim is None
        return Audit(
            subject=self._subject,
            claim=request.claim,
            findings=tuple(findings),
            caveats=(_NO_CLAIM,) if unclaimed else (),
            provenance=Provenance(
                subject="opacus",
                settings={
                    "function": "epsilometer.integrations.opacus:audited",
                    "privacy_engine": {"supplied": type(self._engine).__name__},
                    "optimizer": {"supplied": type(self._optimizer).__name__},
                    "loader": {"supplied": self._loader},
                    "canaries": self.included.size,
                    **settings,
                },
                delta=request.delta,
                confidence=request.confidence,
                seed=request.seed,
                versions=(*versions(), *((name, version(name)) for name in ("torch", "opacus"))),
            ),
        )

    @property
    def _subject(self) -> str:
        inner = type(self._optimizer.original_optimizer).__name__
        return (
            f"Opacus {type(self._optimizer).__name__} of {inner}, {self.steps:,} steps, "
            f"batches by {in_words(self._schedule.sampler)}"
        )

    def _caveats(self) -> tuple[str, ...]:
        said = [
            "What the canaries added to the summed gradient had "
            f"{self.noise_share:.3g} times the norm of the noise, mean of all steps."
        ]
        if self._ghost:
            said.append(_GHOST)
        if self._strange:
            said.append(_STRANGE)
        if self._lost:
            said.append(f"{self._lost} steps had gradients that are not finite; seen as nothing.")
        return tuple(said)


def _flat(tensors: Any) -> Any:
    """One vector of float32 on the CPU."""
    import torch

    return torch.cat([part.detach().reshape(-1).to("cpu", torch.float32) for part in tensors])


def _parts(grad_sample: Any) -> list[Any]:
    """Gradients of single records, one tensor for each batch that was accumulated."""
    if grad_sample is None:
        return []
    return grad_sample if isinstance(grad_sample, list) else [grad_sample]


def _clipped_sums(parts: tuple[Any, ...], norms: Any) -> list[Any]:
    """What clipping and summing makes of the gradients of one batch, one tensor a parameter."""
    import torch

    squares = torch.stack([part.flatten(1).float().square().sum(1) for part in parts])
    lengths = squares.sqrt() if isinstance(norms, list) else squares.sum(0, keepdim=True).sqrt()
    limits = torch.as_tensor(norms, dtype=lengths.dtype, device=lengths.device).reshape(-1, 1)
    factors = (limits / (lengths + 1e-6)).clamp(max=1.0).expand(len(parts), -1)
    return [
        torch.einsum("i,i...", factor, part.float())
        for factor, part in zip(factors, parts, strict=True)
    ]
