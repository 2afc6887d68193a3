"""Opacus: is the ε it reports the ε of this loader, and does this optimiser keep it?"""

import math
import warnings
from copy import copy
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.attacks.canary_steps import CanarySteps
from epsilometer.audits.canary_run import CanaryRun, audit_gradients, audit_steps, audit_weights
from epsilometer.audits.sampling import SamplerCheck, compare_sampling
from epsilometer.canaries.schedule import Schedule
from epsilometer.canaries.sphere import SphereCanaries
from epsilometer.claims import PrivacyClaim
from epsilometer.engine.plan import versions
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.loaders import watch_loader
from epsilometer.mechanisms.samplers import Poisson, Sampler, Sequential, Shuffle
from epsilometer.results import AuditGroup, AuditResult, Provenance
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


def check(
    privacy_engine_or_loader: Any,
    optimizer: Any = None,
    *,
    loader: Any = None,
    delta: float,
    epochs: int | None = None,
    seed: int = 0,
) -> SamplerCheck:
    """Says what sampler a loader is, what the accountant assumes, and the ε of both.

    Opacus with ``poisson_sampling=False`` reports the ε of Poisson sampling and says nothing.

    Guarantees: no batch is loaded and nothing is trained; loaders of torch and Opacus are known by
        their samplers, and no random number of theirs is used up.
    Assumes: the whole loader is gone through every epoch. Other samplers are watched (indices
        only), which moves their randomness on. Where the noise changed from step to step, the real
        ε is that of the most noise, which it is at least.

    Args:
        privacy_engine_or_loader: The ``PrivacyEngine``, together with ``loader``; or the loader
            that ``make_private`` returned, together with ``optimizer``.
        optimizer: The ``DPOptimizer``; with an engine it is needed only before the first step.
        loader: The loader that ``make_private`` returned, where an engine comes first.
        delta: δ of both ε.
        epochs: How many to account for; by default what the engine has on its books, else 1.
        seed: For watching unknown samplers.
    """
    engine = privacy_engine_or_loader
    if not _is_engine(engine):
        engine, loader = None, privacy_engine_or_loader
    batches = _batches(loader)
    _validate.open_unit(delta=delta)
    if epochs is not None:
        _validate.whole(1, epochs=epochs)
    history = _history(engine, optimizer, batches)
    rate = float(history[-1][1])
    done, per_epoch = sum(steps for _, _, steps in history), max(1, round(1 / rate))
    span = epochs or max(1, done // per_epoch)
    noise = max(float(sigma) for sigma, _, _ in history)
    if engine is None:
        name = "PLD"
        reported = poisson_epsilon(
            noise_multiplier=noise, sampling_rate=rate, steps=per_epoch * span, delta=delta
        )
    else:
        name = engine.accountant.mechanism().upper()
        planned = copy(engine.accountant)
        planned.history = history if done == per_epoch * span else [(noise, rate, per_epoch * span)]
        reported = _reported(planned, delta)
    sampler, words, batch_size = _recognised(loader, seed)
    return compare_sampling(
        sampler,
        name=words,
        noise_multiplier=noise,
        rate=rate,
        epochs=span,
        delta=delta,
        reported=reported,
        accountant=name,
        batch_size=batch_size,
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
    if not _is_engine(privacy_engine):
        raise InvalidArgument(
            f"Expected a PrivacyEngine first, got {type(privacy_engine).__name__}: "
            "audited(privacy_engine, optimizer, loader)."
        )
    _check_optimizer(optimizer)
    _batches(loader)
    _validate.whole(2, canaries=canaries)
    _validate.whole(0, seed=seed)
    if isinstance(getattr(optimizer.pre_step, "__self__", None), Audited):
        raise InvalidArgument("Expected an optimiser that is not audited yet: close() that audit.")
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
        self._ghost = _is_ghost(optimizer)
        coins, batches, directions = np.random.default_rng(seed).spawn(3)
        self.included: NDArray[np.bool_] = coins.random(canaries) < 0.5
        sampler = _by_type(loader)
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
        claim: PrivacyClaim | None = None,
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
        self, *, delta: float, claim: PrivacyClaim | None = None, confidence: float = 0.95
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

    def _promise(self, delta: float) -> PrivacyClaim:
        _validate.open_unit(delta=delta)
        accountant = self._engine.accountant
        return PrivacyClaim(
            epsilon=_reported(accountant, delta),
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
            f"batches by {_words(self._schedule.sampler)}"
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


def _is_engine(thing: Any) -> bool:
    with needs("opacus", extra="opacus"):
        from opacus import PrivacyEngine  # type: ignore[import-untyped]
    return isinstance(thing, PrivacyEngine)


def _is_ghost(optimizer: Any) -> bool:
    from opacus.optimizers import DPOptimizerFastGradientClipping  # type: ignore[import-untyped]

    return isinstance(optimizer, DPOptimizerFastGradientClipping)


def _check_optimizer(optimizer: Any) -> None:
    from opacus.optimizers import DPOptimizer

    if not isinstance(optimizer, DPOptimizer):
        raise InvalidArgument(
            f"Expected the DPOptimizer that make_private returned, got {type(optimizer).__name__}."
        )
    kinds = " ".join(kind.__name__ for kind in type(optimizer).__mro__)
    if "Distributed" in kinds or "FSDP" in kinds:
        raise InvalidArgument(
            f"Expected an optimiser of one process, got {type(optimizer).__name__}. "
            "Every process would plant its own canaries: audit the training on one."
        )


def _batches(loader: Any) -> int:
    """Batches of an epoch."""
    from torch.utils.data import DataLoader, IterableDataset

    if not isinstance(loader, DataLoader):
        raise InvalidArgument(
            f"Expected the DataLoader that make_private returned, got {type(loader).__name__}. "
            "A PrivacyEngine does not keep its loader: give it beside the engine."
        )
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidArgument(
            "Expected a loader over records that have indices, got one of an IterableDataset: "
            "what it draws can be neither seen nor accounted for."
        )
    if len(loader) == 0:
        raise InvalidArgument("Expected a loader of at least one batch, got none.")
    return len(loader)


def _history(engine: Any, optimizer: Any, batches: int) -> list[tuple[float, float, int]]:
    """(noise, rate, steps) as on the accountant's books, or as they will be."""
    booked = [] if engine is None else list(engine.accountant.history)
    if booked:
        return booked
    if optimizer is None:
        raise InvalidArgument(
            "Expected the DPOptimizer beside a loader, or an engine that has seen steps, got "
            "neither: how much noise there will be is not known. Give optimizer=."
        )
    _check_optimizer(optimizer)
    return [(float(optimizer.noise_multiplier), 1 / batches, 0)]


def _reported(accountant: Any, delta: float) -> float:
    """The ε that Opacus reports."""
    if any(sigma == 0 for sigma, _, _ in accountant.history):
        return math.inf
    if not accountant.history:
        return 0.0
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        # At rate 1 the PRV accountant takes ln 0, RDP comments on its orders: the numbers hold.
        warnings.simplefilter("ignore", UserWarning)
        return float(accountant.get_epsilon(delta))


def _recognised(loader: Any, seed: int) -> tuple[Sampler | None, str, int | None]:
    """The sampler of a loader, its name and batch size; watched where its type says nothing."""
    known = _by_type(loader)
    if known is not None:
        return known, _words(known), loader.batch_size
    report = watch_loader(loader, rng=np.random.default_rng(seed))
    found = report.sampler
    if isinstance(found, Poisson):
        found = replace(found, rate=report.batch_size / report.records)
    return found, f"{report.name} (as watched)", report.batch_size


def _by_type(loader: Any) -> Sampler | None:
    from opacus.utils.batch_memory_manager import (  # type: ignore[import-untyped]
        BatchSplittingSampler,
    )
    from opacus.utils.uniform_sampler import (  # type: ignore[import-untyped]
        UniformWithReplacementSampler,
    )
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    source = loader.batch_sampler
    if type(source) is BatchSplittingSampler:  # physical batches of logical ones
        source = source.sampler
    if type(source) is UniformWithReplacementSampler:
        return Poisson(rate=float(source.sample_rate), steps=len(source))
    if type(source) is not BatchSampler:
        return None
    order: Any = source.sampler
    whole = len(order) == len(loader.dataset)
    if type(order) is RandomSampler and not order.replacement and whole:
        return Shuffle(drop_last=source.drop_last)
    return Sequential(drop_last=source.drop_last) if type(order) is SequentialSampler else None


def _words(sampler: Sampler) -> str:
    match sampler:
        case Poisson(rate):
            return f"Poisson sampling at rate {rate:.4g}"
        case Shuffle():
            return "shuffling every epoch"
        case _:
            return "going through the records in order"


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
