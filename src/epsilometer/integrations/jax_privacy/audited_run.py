"""Audit your normal JAX loop: noise, batches, books and canaries."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from epsilometer import _validate
from epsilometer.audits.dpsgd.canary_run import CanaryRun, CanarySteps, measure_gradients
from epsilometer.conformance.whitening import Whitening
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim, as_claim
from epsilometer.core.findings import ConformanceFinding
from epsilometer.engine.framework_audits import make_framework_audit
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.jax_privacy.books import read_books, read_sampling, report_epsilon
from epsilometer.integrations.jax_privacy.run_watch import SHARE, RunWatch
from epsilometer.integrations.jax_privacy.samplers import Recognised, recognise
from epsilometer.sampling.samplers import is_poisson
from epsilometer.types import BoolArray, FloatArray

_NO_CANARIES = "No canaries were planted: batches are not drawn by plain Poisson sampling."
_AFTER_CLIPPING = "Canaries were added after clipping, which they cannot test: replay() does."
_UNKNOWN = Recognised(sampler=None, words="an unknown sampler", batch_size=1)


def audited(
    privatizer: Any,
    *,
    noise_multiplier: float,
    clip_norm: float,
    books: Any,
    records: int,
    batches: Any = None,
    steps: int | None = None,
    noise: Any = None,
    sensitivity: float | None = None,
    canaries: int = 500,
    seed: int = 0,
) -> "Audited":
    """Audit your normal training run by changing two lines of the loop.

    ``run = audited(privatizer, …)``; the loop uses ``run.privatizer`` instead of ``privatizer``,
    and iterates over ``run.watch_batches(iterator)``. Call ``run.result(delta=…)`` after it. The
    loop may be compiled: a callback moves observations off the device. Canaries are random
    directions in parameter space, each included by its own coin, which are added to the sum before
    noise.

    Guarantee: refutes a true claim in at most 5 % of audits; at most 1 correct run in 1,000 is
        found violated. The privacy of the records is unchanged.
    Assumption: the loop calls ``run.privatizer.update`` once per step, on one device.

    Args:
        privatizer: The gradient transformation that adds noise.
        noise_multiplier: Intended σ of the program.
        clip_norm: Largest norm that one record may add to the sum before noise: ``l2_norm_bound``
            of the clipped gradient function.
        books: The books, see :func:`read_books`.
        records: Records of the training set.
        batches: The batch selection strategy, a Grain sampler, or a loader of record numbers; None
            if unknown.
        steps: See :func:`read_books`.
        noise: Declared correlated noise: a noising matrix (array or ``StreamingMatrix``,
            with ``steps``), or a :class:`~epsilometer.conformance.whitening.Whitening`.
        sensitivity: Sensitivity of the declared noise's encoder to one record; by default the
            largest norm of its columns, which holds where a record takes part once per band.
        canaries: Number of canaries; about half are included.
        seed: Seed of coins, steps and directions.
    """
    _validate.positive(noise_multiplier=noise_multiplier, clip_norm=clip_norm)
    _validate.whole(1, records=records)
    _validate.whole(0, canaries=canaries, seed=seed)
    if not (hasattr(privatizer, "init") and hasattr(privatizer, "update")):
        raise InvalidArgument(
            "Expected a privatizer with init and update, as gaussian_privatizer returns it, got "
            f"{type(privatizer).__name__}."
        )
    known = _UNKNOWN if batches is None else recognise(batches, records=records)
    history = read_books(books, steps=steps, cycle_length=known.cycle_length)
    declared, scale = _declare_noise(noise, steps, sensitivity)
    watch = RunWatch(
        noise_multiplier=noise_multiplier,
        unit=noise_multiplier * clip_norm * scale,
        clip=clip_norm,
        records=records,
        known=known,
        history=history,
        booked=read_sampling(books),
        noise=declared,
    )
    by_coin = known.sampler is not None and is_poisson(known.sampler) and known.cycle_length == 1
    return Audited(
        privatizer,
        watch,
        clip_norm=clip_norm,
        books=(books, steps),
        canaries=canaries if by_coin and declared is None else 0,
        seed=seed,
    )


def _declare_noise(
    noise: Any, steps: int | None, sensitivity: float | None
) -> tuple[Whitening | None, float]:
    """Return declared correlated noise, and its sensitivity to a record of one clipping norm."""
    if noise is None:
        return None, 1.0
    if hasattr(noise, "materialize"):
        if steps is None:
            raise InvalidArgument("Expected steps= with a StreamingMatrix, which has no end.")
        noise = np.asarray(noise.materialize(steps), np.float64)
    declared = noise if isinstance(noise, Whitening) else Whitening(noise)
    if sensitivity is None:
        if steps is None:
            raise InvalidArgument("Expected steps= or sensitivity= with declared noise.")
        sensitivity = float(np.linalg.norm(declared.make_encoder(steps), axis=0).max())
    _validate.positive(sensitivity=sensitivity)
    return declared, sensitivity


class Audited:
    """Watch a JAX loop; made by :func:`audited`.

    Attributes:
        privatizer: Use it instead of the original one.
        watch: Observations so far.
    """

    def __init__(
        self,
        privatizer: Any,
        watch: RunWatch,
        *,
        clip_norm: float,
        books: tuple[Any, int | None],
        canaries: int,
        seed: int,
    ) -> None:
        self.watch, self._clip, self._books, self._seed = watch, clip_norm, books, seed
        self._own, self._asked = privatizer, canaries
        self._canaries: _Directions | None = None
        self._seen: list[FloatArray] = []
        self._took: list[BoolArray] = []
        self.privatizer = optax.GradientTransformation(self._init, self._update)

    def watch_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Iterate over unchanged batches of record numbers, and record them."""
        for batch in batches:
            self.watch.see_batch(batch)
            yield batch

    @property
    def conformance(self) -> ConformanceFinding:
        """Whether the run so far did what was accounted for."""
        jax.effects_barrier()  # results may not have left the device yet
        return self.watch.finding()

    def result(
        self,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
    ) -> Audit:
        """Judge a claim for an adversary who sees every noisy sum, but not the batches.

        Args:
            delta: δ of the claim; not needed with a ``Claim``.
            claim: The claimed ε, or a ``Claim``; by default the ε of the books at ``delta``.
            confidence: One-sided, of all views together.
        """
        jax.effects_barrier()
        if not self.watch.steps:
            raise InvalidArgument(
                "Expected at least one step before a result, saw none. Train with run.privatizer."
            )
        request = self._ask(delta, claim, confidence)
        spent = min(SHARE, (1 - confidence) / 2)
        found: list[Any] = []
        if self._seen:
            found.append(
                measure_gradients(
                    self._collect(),
                    delta=request.known_delta,
                    claim=request.claim,
                    confidence=confidence,
                    spent=spent,
                    estimates=[],
                )
            )
        bound = self.watch.bound_epsilon(delta=request.known_delta, alpha=spent)
        caveats = [_AFTER_CLIPPING] if self._seen else [_NO_CANARIES]
        if self.watch.lost:
            caveats.append(f"{self.watch.lost} steps had sums that are not finite.")
        return make_framework_audit(
            "jax_privacy",
            ("jax", "jax_privacy"),
            "audited",
            subject=f"JAX-Privacy, {self.watch.steps:,} steps, batches by {self.watch.words}",
            findings=(*found, self.watch.finding(bound=bound)),
            caveats=tuple(caveats),
            supplied={"privatizer": self._own, "books": self._books[0]},
            settings={"canaries": len(self._took[0]) if self._took else 0},
            claim=request.claim,
            delta=request.delta,
            confidence=confidence,
            seed=self._seed,
        )

    def _ask(self, delta: float | None, claim: Claim | float | None, confidence: float) -> Request:
        _validate.open_unit(confidence=confidence)
        given = as_claim(claim, delta=delta)
        at = Request(claim=given, delta=delta if given is None else given.delta).known_delta
        _validate.open_unit(delta=at)
        if given is None:
            epsilon = report_epsilon(self._books[0], delta=at, steps=self._books[1])
            if math.isfinite(epsilon):
                given = Claim(epsilon, at, sampler="Poisson", accountant="PLD")
        request = Request(claim=given, delta=at, confidence=confidence, seed=self._seed)
        filled = request.fill_claim(adjacency="add_remove", unit="record")
        return Request(claim=filled, delta=at, confidence=confidence, seed=self._seed)

    def _collect(self) -> CanaryRun:
        assert self._canaries is not None
        count = len(self._seen)
        return CanaryRun(
            included=self._canaries.included,
            steps=CanarySteps(
                seen=np.stack(self._seen),
                took=np.stack(self._took),
                noise=np.full(count, self.watch.noise_multiplier),
                chance=np.full(count, self.watch.rate),
                blur=np.zeros(count),
            ),
            weights=np.zeros(self._canaries.included.size),
            public_order=False,
            subject=f"JAX-Privacy, {count:,} steps",
            caveats=(),
            seed=self._seed,
        )

    def _init(self, params: Any) -> Any:
        size = sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(params))
        if self._asked:
            self._canaries = _Directions(min(self._asked, size), size, self._seed)
        return self._own.init(params), jnp.zeros((), jnp.int32)

    def _update(self, sums: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        """Add noise with the privatizer itself, to a sum that includes canaries."""
        inner, at = state
        took, planted = jnp.zeros(0, bool), sums
        if self._canaries is not None:
            took = self._canaries.draw(at, self.watch.rate or 0.0)
            planted = self._canaries.add(sums, took, self._clip)
        noisy, inner = self._own.update(planted, inner, params)
        residual = jax.tree.map(lambda a, b: a.astype(b.dtype) - b, noisy, planted)
        along = jnp.zeros(0)
        if self._canaries is not None:
            along = self._canaries.measure(residual) / self._clip
        norm = optax.global_norm(sums)
        jax.debug.callback(self._see, residual, norm, took, along, ordered=True)
        return noisy, (inner, at + 1)

    def _see(self, residual: Any, norm: Any, took: Any, along: Any) -> None:
        noise = np.asarray(along, np.float64)
        took = np.asarray(took, np.bool_)
        added = np.zeros(0)
        if self._canaries is not None:
            added = (took & self._canaries.included).astype(np.float64)
        finite = self.watch.see(residual, norm=norm, noise=noise, added=added)
        if self._canaries is not None:
            self._seen.append(noise + added if finite else np.zeros(noise.size))
            self._took.append(took)


class _Directions:
    """Orthonormal directions over all parameters, each on its own coordinates."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        coins, keys = np.random.default_rng(seed).spawn(2)
        self.included: BoolArray = coins.random(count) < 0.5
        words = keys.integers(2**32, size=(2, 2), dtype=np.uint32)
        self._count, self._size = count, size
        self._drawing, self._signing = words
        owned = (size - np.arange(count) + count - 1) // count
        self._norms = np.sqrt(owned).astype(np.float32)

    def draw(self, at: Any, rate: float) -> Any:
        """Return which canaries would be in the step with this number."""
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(self._drawing)), at)
        return jax.random.bernoulli(key, rate, (self._count,))

    def add(self, sums: Any, took: Any, clip: float) -> Any:
        """Add the included canaries that take part, each with one clipping norm."""
        wave = jnp.where(took & self.included, clip, 0.0) / self._norms
        rows = -(-self._size // self._count)
        flat = (self._signs() * jnp.tile(wave, rows)[: self._size]).astype(jnp.float32)
        leaves, tree = jax.tree.flatten(sums)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1].tolist()
        parts = jnp.split(flat, ends)
        added = [
            leaf + part.reshape(leaf.shape).astype(leaf.dtype)
            for leaf, part in zip(leaves, parts, strict=True)
        ]
        return jax.tree.unflatten(tree, added)

    def measure(self, tree: Any) -> Any:
        """Return the inner product of each canary with a tree."""
        flat = jnp.concatenate([leaf.ravel().astype(jnp.float32) for leaf in jax.tree.leaves(tree)])
        rows = -(-self._size // self._count)
        whole = jnp.pad(flat * self._signs(), (0, rows * self._count - self._size))
        return whole.reshape(rows, self._count).sum(0) / self._norms

    def _signs(self) -> Any:
        key = jax.random.wrap_key_data(jnp.asarray(self._signing))
        return jax.random.rademacher(key, (self._size,), jnp.float32)
