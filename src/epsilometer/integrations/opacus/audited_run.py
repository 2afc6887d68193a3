"""Does this optimiser keep what its engine promises? Canaries in the run that is done anyway."""

import math
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.attacks.canary_steps import CanarySteps
from epsilometer.audits.canary_run import CanaryRun, audit_gradients, audit_steps, audit_weights
from epsilometer.canaries.schedule import Schedule
from epsilometer.canaries.sphere import SphereCanaries
from epsilometer.core.claim import Claim
from epsilometer.engine.plan import versions
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
from epsilometer.core.audit import AuditGroup, AuditResult, Provenance
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


def audited(
    privacy_engine: Any,
    optimizer: Any,
    loader: Any,
    *,
    canaries: int = 500,
    seed: int = 0,
) -> "Audited":
    """Plants canaries in the one training run that is done anyway; the loop stays as it is.

    One line after ``make_private``, ``audit = audited(privacy_engine, optimizer, loader)``, and
    ``audit.result(delta=...)`` after the loop. Every canary is a random direction in the space of
    the trainable parameters, planted or not by its own fair coin. A planted one is a record: it
    joins batches as the loader's records do, as a row of ``grad_sample`` of ten times the clipping
    norm. Virtual steps, gradient accumulation, ghost clipping, any inner optimiser and schedulers
    keep working.

    Guarantees: those of :meth:`Audited.result`; the records of the loader are as private as before.
    Assumes: one process; canaries are few beside the parameters (a tenth is a good rule), or they
        drown each other, which costs power and never validity.

    Args:
        privacy_engine: The engine that made the optimiser private; says what is promised.
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
        delta: float,
        claim: Claim | None = None,
        confidence: float = 0.95,
        method: str = "one_run",
    ) -> AuditResult:
        """Judges the promise by one who sees every noisy gradient and does not know the batches.

        Guarantees: refutes a true claim with probability at most ``1 - confidence``.
        Assumes: no more than the claim, with ``one_run``. ``one_run_fdp`` proves more, but assumes
            a Gaussian trade-off curve: it is taken where every record is in every step (rate 1),
            or their order is public, and refused elsewhere.

        Args:
            delta: δ of the bound and of the engine's claim.
            claim: What was promised; by default what the engine reports at ``delta``.
            confidence: One-sided; what it costs to look at several views is paid.
            method: ``one_run`` or ``one_run_fdp``; the other is shown beside it.
        """
        return audit_gradients(
            self._run(),
            delta=delta,
            claim=claim or self._promise(delta),
            confidence=confidence,
            method=method,
        )

    def step_result(self, *, delta: float, confidence: float = 0.95) -> AuditResult:
        """Judges clipping and noise themselves: by one who also knows the canaries' batches.

        The claim is not the engine's but that of a Gaussian mechanism taken as often as a canary
        took part, since sampling hides nothing from him. A right optimiser meets it exactly, and
        against a wrong one this finds by far the most.

        Guarantees: refutes an optimiser that clips and adds noise as it says with probability at
            most ``1 - confidence``.
        """
        return audit_steps(self._run(), delta=delta, confidence=confidence)

    def final_result(
        self, *, delta: float, claim: Claim | None = None, confidence: float = 0.95
    ) -> AuditResult:
        """Judges the promise by one who sees the first and the last weights only."""
        return audit_weights(
            self._run(), delta=delta, claim=claim or self._promise(delta), confidence=confidence
        )

    def report(self, *, delta: float, confidence: float = 0.95) -> AuditGroup:
        """All three side by side; each keeps its own confidence."""
        by_view = {
            "every noisy gradient seen": self.result(delta=delta, confidence=confidence),
            "batches known too": self.step_result(delta=delta, confidence=confidence),
            "weights before and after seen": self.final_result(delta=delta, confidence=confidence),
        }
        return AuditGroup(
            subject=self._subject,
            results=tuple(
                replace(found, subject=f"{found.subject}: {view}")
                for view, found in by_view.items()
            ),
        )

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
        call = f"canaries={self.included.size}, seed={self._seed}"
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
            provenance=Provenance(
                command=f"audited(privacy_engine, optimizer, loader, {call})",
                versions=(*versions(), *((name, version(name)) for name in ("torch", "opacus"))),
            ),
            seed=self._seed,
        )

    def _promise(self, delta: float) -> Claim:
        _validate.open_unit(delta=delta)
        accountant = self._engine.accountant
        return Claim(
            epsilon=reported_epsilon(accountant, delta),
            delta=delta,
            adjacency="add_remove",
            sampler="Poisson",
            accountant=accountant.mechanism().upper(),
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
