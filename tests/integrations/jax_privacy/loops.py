"""A small JAX loop with JAX-Privacy, and ways to write it wrongly."""

from collections.abc import Callable, Iterable
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipped_grad, noise_addition
from jax_privacy.accounting import DpParams, SamplingMethod

from epsilometer.core.findings import ConformanceFinding
from epsilometer.integrations.jax_privacy import audited

RECORDS, FEATURES, STEPS, RATE, SIGMA, CLIP = 240, 40, 24, 0.1, 1.0, 4.0
WIDTH = 64  # batches are filled up to it, so that one program is compiled


def make_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.float32)


def measure_loss(params: Any, batch: Any) -> Any:
    x, y = batch
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def make_params() -> Any:
    return {"w": jnp.zeros((FEATURES, 1))[:, 0], "b": jnp.zeros((3,)).sum()}


def book(rate: float = RATE, steps: int = STEPS, sigma: float = SIGMA) -> Any:
    step: Any = dp_accounting.GaussianDpEvent(sigma)
    if rate < 1:
        step = dp_accounting.PoissonSampledDpEvent(rate, step)
    return dp_accounting.SelfComposedDpEvent(step, steps)


def book_cut(most: int, records: int = RECORDS) -> Any:
    """Book Poisson sampling whose batches are cut off."""
    step = dp_accounting.TruncatedSubsampledGaussianDpEvent(records, RATE, most, SIGMA)
    return dp_accounting.SelfComposedDpEvent(step, STEPS)


def book_fixed() -> Any:
    """Book random subsets of one size, as JAX-Privacy does."""
    return DpParams(
        noise_multipliers=SIGMA,
        num_samples=RECORDS,
        delta=1e-5,
        batch_size=round(RATE * RECORDS),
        sampling_method=SamplingMethod.FIXED_BATCH_SIZE,
    )


def draw_fixed() -> Any:
    return batch_selection.FixedBatchSampling(batch_size=round(RATE * RECORDS), iterations=STEPS)


def poisson(rate: float = RATE, steps: int = STEPS, **settings: Any) -> Any:
    return batch_selection.CyclicPoissonSampling(sampling_prob=rate, iterations=steps, **settings)


def gaussian(stddev: float, seed: int = 1, **settings: Any) -> Any:
    return noise_addition.gaussian_privatizer(stddev=stddev, prng_key=seed, **settings)


def run_loop(
    privatizer: Any,
    *,
    strategy: Any = None,
    drawn: Iterable[Any] | None = None,
    books: Any = None,
    keep_state: bool = True,
    transform: Callable[[Any], Any] = lambda sums: sums,
    clip: Any = None,
    canaries: int = 10,
    dtype: Any = jnp.float32,
    **settings: Any,
) -> ConformanceFinding:
    """Train with an audit, and return what it found."""
    x, y = make_data()
    grad = clip or clipped_grad(measure_loss, l2_clip_norm=CLIP)
    strategy = poisson() if strategy is None else strategy
    run = audited(
        privatizer,
        noise_multiplier=settings.pop("noise_multiplier", SIGMA),
        clip_norm=grad.l2_norm_bound,
        books=book() if books is None else books,
        records=RECORDS,
        batches=strategy,
        canaries=canaries,
        **settings,
    )

    def step(params: Any, state: Any, x: Any, y: Any, padding: Any) -> Any:
        sums = transform(grad(params, (x, y), is_padding_example=padding))
        noisy, state = run.privatizer.update(sums, state)
        return optax.apply_updates(params, jax.tree.map(lambda g: -0.01 * g, noisy)), state

    compiled = jax.jit(step)
    params = jax.tree.map(lambda p: p.astype(dtype), make_params())
    state = first = run.privatizer.init(params)
    batches = strategy.batch_iterator(RECORDS, 7) if drawn is None else drawn
    for batch in run.watch_batches(batches):
        own = batch_selection.pad_to_multiple_of(np.asarray(batch), WIDTH)
        params, state = compiled(params, state, x[own], y[own], own < 0)
        state = state if keep_state else first
    return run.conformance
