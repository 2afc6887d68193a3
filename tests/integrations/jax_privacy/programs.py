"""Programs with JAX-Privacy that are wrong, each with the check that must catch it, and right ones.

The zoo of the package runs in the main environment, which has no JAX; these are its JAX programs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipped_grad, noise_addition
from jax_privacy.clipping import BoundedSensitivityCallable
from jax_privacy.experimental import execution_plan
from jax_privacy.matrix_factorization import toeplitz

from epsilometer.core.findings import ConformanceFinding
from epsilometer.integrations.jax_privacy import audited, audited_plan, replay
from tests.integrations.jax_privacy.loops import (
    CLIP,
    FEATURES,
    RATE,
    RECORDS,
    SIGMA,
    STEPS,
    book,
    book_cut,
    book_fixed,
    draw_fixed,
    gaussian,
    make_data,
    make_params,
    measure_loss,
    poisson,
    run_loop,
)

Program = Callable[[], ConformanceFinding]
BANDS = np.array([1.0, 0.6, 0.3])
COLUMN = float(np.linalg.norm(BANDS))


def _shuffle() -> list[Any]:
    rng, size = np.random.default_rng(3), round(RATE * RECORDS)
    epochs = -(-STEPS * size // RECORDS)
    order = np.concatenate([rng.permutation(RECORDS) for _ in range(epochs)])
    return [order[at * size : (at + 1) * size] for at in range(STEPS)]


def _without_bias() -> Any:
    own = gaussian(SIGMA * CLIP)

    def update(sums: Any, state: Any, params: Any = None) -> Any:
        noisy, state = own.update(sums, state, params)
        return {**noisy, "w": noisy["w"].at[0].set(sums["w"][0])}, state

    return optax.GradientTransformation(own.init, update)


def _draw_by_hand(draw: Callable[[Any, Any], Any]) -> Any:
    """Add ``draw(key, step)`` standard deviations to the weights, without JAX-Privacy."""

    def update(sums: Any, state: Any, params: Any = None) -> Any:
        key, at = state
        key, own, other = jax.random.split(key, 3)
        noise = {"w": draw(own, at), "b": jax.random.normal(other)}
        return jax.tree.map(lambda g, n: g + SIGMA * CLIP * n, sums, noise), (key, at + 1)

    return optax.GradientTransformation(lambda _: (jax.random.key(2), jnp.zeros((), int)), update)


def _tile(key: Any, step: Any) -> Any:
    return jnp.tile(jax.random.normal(key, (FEATURES // 2,)), 2)


def _decay(key: Any, step: Any) -> Any:
    """Scale noise down from step to step, so that its variance is on average what is booked."""
    variances = jnp.linspace(1.64, 0.36, STEPS)
    return jnp.sqrt(variances)[step] * jax.random.normal(key, (FEATURES,))


def _count_padding() -> Any:
    own = clipped_grad(measure_loss, l2_clip_norm=CLIP)
    return BoundedSensitivityCallable(
        lambda params, batch, is_padding_example: own(params, batch), CLIP, False
    )


def _run_scan() -> ConformanceFinding:
    """Take all steps in one compiled scan."""
    grad, strategy = clipped_grad(measure_loss, l2_clip_norm=CLIP), poisson()
    run = audited(
        gaussian(SIGMA * CLIP), noise_multiplier=SIGMA, clip_norm=CLIP, books=book(),
        records=RECORDS, batches=strategy, canaries=10,
    )  # fmt: skip
    drawn = run.watch_batches(strategy.batch_iterator(RECORDS, 7))
    padded = np.stack([batch_selection.pad_to_multiple_of(each, 64) for each in drawn])
    x, y = map(jnp.asarray, make_data())

    def step(carry: Any, own: Any) -> Any:
        params, state = carry
        noisy, state = run.privatizer.update(
            grad(params, (x[own], y[own]), is_padding_example=own < 0), state
        )
        return (jax.tree.map(lambda p, g: p - 0.01 * g, params, noisy), state), None

    params = make_params()
    jax.jit(lambda carry: jax.lax.scan(step, carry, padded))((params, run.privatizer.init(params)))
    return run.conformance


def _replay_optax(together: int = 1) -> ConformanceFinding:
    """Replay optax's own aggregate, of the mean gradients of so many records each."""
    params = {"w": 0.1 * jnp.ones(FEATURES), "b": jnp.zeros(())}

    def step(batch: Any, key: Any) -> Any:
        groups = batch[1].size // together
        parts = [part[: groups * together].reshape(groups, together, *part.shape[1:])
                 for part in batch]  # fmt: skip
        grads = jax.vmap(lambda x, y: jax.grad(measure_loss)(params, (x, y)))(*parts)
        privatizer = optax.contrib.differentially_private_aggregate(CLIP, SIGMA, key)
        mean, _ = privatizer.update(grads, privatizer.init(params))
        return jax.tree.map(lambda g: g * groups, mean)

    x, y = make_data()
    found = replay(
        step, (x[:6], y[:6]), clip_norm=CLIP, noise_multiplier=SIGMA, steps=24, records=2
    ).conformance
    assert found is not None
    return found


def _uniform() -> Any:
    def update(sums: Any, key: Any, params: Any = None) -> Any:
        key, own = jax.random.split(key)
        flat, unravel = jax.flatten_util.ravel_pytree(sums)
        width = SIGMA * CLIP * np.sqrt(3.0)
        drawn = jax.random.uniform(own, flat.shape, minval=-width, maxval=width)
        return unravel(flat + drawn), key

    return optax.GradientTransformation(lambda _: jax.random.key(2), update)


def _correlated(factor: float = 1.0) -> Any:
    return noise_addition.matrix_factorization_privatizer(
        toeplitz.inverse_as_streaming_matrix(BANDS), stddev=factor * SIGMA * CLIP, prng_key=4
    )


def _dense(factor: float = 1.0) -> Any:
    return noise_addition.matrix_factorization_privatizer(
        jnp.asarray(_mix()), stddev=factor * SIGMA * CLIP, prng_key=5
    )


def _mix() -> Any:
    return np.asarray(toeplitz.inverse_as_streaming_matrix(BANDS).materialize(STEPS))


def _run_correlated(privatizer: Any, noise: Any) -> ConformanceFinding:
    everyone = batch_selection.CyclicPoissonSampling(
        sampling_prob=0.3, iterations=STEPS, cycle_length=len(BANDS)
    )
    return run_loop(
        privatizer,
        strategy=everyone,
        books=book(0.3, STEPS // len(BANDS)),
        steps=STEPS,
        noise=noise,
    )


def _run_out_of_turn() -> ConformanceFinding:
    """Divide the records anew in every cycle: two steps of a record may be neighbours."""
    cyclic = batch_selection.CyclicPoissonSampling(
        sampling_prob=0.3, iterations=len(BANDS), cycle_length=len(BANDS)
    )
    rng = np.random.default_rng(6)
    drawn = [b for _ in range(STEPS // 3) for b in cyclic.batch_iterator(RECORDS, rng)]
    return run_loop(
        _correlated(COLUMN),
        strategy=cyclic,
        drawn=drawn,
        books=book(0.3, STEPS // len(BANDS)),
        steps=STEPS,
        noise=_mix(),
    )


def _run_plan(**settings: Any) -> ConformanceFinding:
    config = execution_plan.BandMFExecutionPlanConfig(
        iterations=STEPS,
        epsilon=None,
        delta=None,
        noise_multiplier=SIGMA,
        noise_seed=8,
        sampling_prob=0.3,
        **settings,
    )
    plan = audited_plan(config, records=RECORDS, canaries=10)
    x, y = make_data()
    grad = plan.clipped_grad(measure_loss)
    params = make_params()
    state = plan.noise_addition_transform.init(params)
    step = jax.jit(lambda p, s, x, y, pad: plan.noise_addition_transform.update(
        grad(p, (x, y), is_padding_example=pad), s
    ))  # fmt: skip
    for batch in plan.batch_selection_strategy.batch_iterator(RECORDS, 9):
        own = batch_selection.pad_to_multiple_of(batch, 128)
        _, state = step(params, state, x[own], y[own], own < 0)
    return plan.run.conformance


def _replay(
    make_grad: Callable[[], Any] | None = None,
    *,
    before: Callable[[Any], Any] = lambda sums: sums,
    fixed_key: bool = False,
) -> ConformanceFinding:
    grad = make_grad() if make_grad else clipped_grad(measure_loss, l2_clip_norm=CLIP)
    params = {"w": 0.1 * jnp.ones(FEATURES), "b": jnp.zeros(())}

    def step(batch: Any, key: Any) -> Any:
        used = jax.random.key(0) if fixed_key else key
        privatizer = noise_addition.gaussian_privatizer(stddev=SIGMA * CLIP, prng_key=used)
        noisy, _ = privatizer.update(before(grad(params, batch)), privatizer.init(params))
        return noisy

    x, y = make_data()
    found = replay(
        jax.jit(step),
        (x[:6], y[:6]),
        clip_norm=CLIP,
        noise_multiplier=SIGMA,
        steps=24,
        records=2,
    )
    assert found.conformance is not None
    return found.conformance


def _clip_by_layer() -> Any:
    def clip(grads: Any) -> Any:
        return jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / jnp.linalg.norm(g)), grads)

    def sum_clipped(params: Any, batch: Any) -> Any:
        one = jax.vmap(lambda x, y: clip(jax.grad(measure_loss)(params, (x[None], y[None]))))
        return jax.tree.map(lambda g: g.sum(0), one(*batch))

    return BoundedSensitivityCallable(sum_clipped, CLIP, False)


def _mix_records() -> Any:
    """Centre features over the batch, before gradients are clipped."""
    inner = clipped_grad(measure_loss, l2_clip_norm=CLIP)
    return BoundedSensitivityCallable(
        lambda params, batch: inner(params, (batch[0] - batch[0].mean(0), batch[1])), CLIP, False
    )


def _run_several(batches: int, updates: int) -> ConformanceFinding:
    """Add up several batches per step, or take several steps per batch."""
    x, y = make_data()
    grad = clipped_grad(measure_loss, l2_clip_norm=CLIP)
    steps = 40 * updates // batches
    strategy = poisson(steps=40)
    run = audited(
        gaussian(SIGMA * CLIP), noise_multiplier=SIGMA, clip_norm=CLIP, books=book(steps=steps),
        records=RECORDS, batches=strategy, canaries=10,
    )  # fmt: skip
    params = make_params()
    state, sums = run.privatizer.init(params), jax.tree.map(jnp.zeros_like, params)
    take = jax.jit(lambda p, x, y, pad: grad(p, (x, y), is_padding_example=pad))
    update = jax.jit(run.privatizer.update)
    for at, batch in enumerate(run.watch_batches(strategy.batch_iterator(RECORDS, 7)), start=1):
        own = batch_selection.pad_to_multiple_of(batch, 64)
        sums = jax.tree.map(jnp.add, sums, take(params, x[own], y[own], own < 0))
        if at % batches == 0:
            for _ in range(updates):
                _, state = update(sums, state)
            sums = jax.tree.map(jnp.zeros_like, params)
    return run.conformance


def _forget_clipping() -> Any:
    def sum_up(params: Any, batch: Any, is_padding_example: Any) -> Any:
        one = jax.vmap(lambda x, y: jax.grad(measure_loss)(params, (x[None], 99 * y[None])))
        keep = ~is_padding_example
        return jax.tree.map(lambda g: jnp.tensordot(keep.astype(g.dtype), g, 1), one(*batch))

    return BoundedSensitivityCallable(sum_up, CLIP, False)


WRONG: dict[str, tuple[Program, str]] = {
    "half the noise": (lambda: run_loop(gaussian(SIGMA * CLIP / 2)), "noise scale"),
    "noise without the clipping norm": (lambda: run_loop(gaussian(SIGMA)), "noise scale"),
    "uniform noise": (lambda: run_loop(_uniform()), "noise shape"),
    "noise of half the weights, twice": (
        lambda: run_loop(_draw_by_hand(_tile)),
        "independence within a step",
    ),
    "noise that decays, of the booked variance on average": (
        lambda: run_loop(_draw_by_hand(_decay)),
        "noise scale",
    ),
    # JAX draws 128 values, none of which is beyond 2.9 standard deviations.
    "bfloat16 weights, and noise of their type": (
        lambda: run_loop(
            gaussian(SIGMA * CLIP),
            dtype=jnp.bfloat16,
            strategy=poisson(steps=8 * STEPS),
            books=book(steps=8 * STEPS),
        ),
        "noise shape",
    ),
    "padding that counts as the last record": (
        lambda: run_loop(gaussian(SIGMA * CLIP), clip=_count_padding()),
        "norm of the sum",
    ),
    "a weight without noise": (lambda: run_loop(_without_bias()), "noise in every part"),
    "noise state not carried on": (
        lambda: run_loop(gaussian(SIGMA * CLIP), keep_state=False),
        "independence of steps",
    ),
    "shuffling booked as Poisson sampling": (
        lambda: run_loop(gaussian(SIGMA * CLIP), drawn=_shuffle()),
        "batch sizes",
    ),
    "twice the booked rate": (
        lambda: run_loop(gaussian(SIGMA * CLIP), strategy=poisson(2 * RATE)),
        "rate on the books",
    ),
    "records drawn at twice the rate that is declared": (
        lambda: run_loop(
            gaussian(SIGMA * CLIP), drawn=poisson(2 * RATE).batch_iterator(RECORDS, 2)
        ),
        "sampling rate",
    ),
    "half of the steps on the books": (
        lambda: run_loop(gaussian(SIGMA * CLIP), books=book(steps=STEPS // 2)),
        "steps on the books",
    ),
    "less noise than booked": (
        lambda: run_loop(gaussian(SIGMA * CLIP), books=book(sigma=2 * SIGMA)),
        "noise on the books",
    ),
    "fixed batches booked as Poisson sampling": (
        lambda: run_loop(
            gaussian(SIGMA * CLIP),
            drawn=batch_selection.FixedBatchSampling(
                batch_size=round(RATE * RECORDS), iterations=STEPS
            ).batch_iterator(RECORDS, 3),
        ),
        "batch sizes",
    ),
    "batches that are cut off, booked as plain Poisson sampling": (
        lambda: run_loop(gaussian(SIGMA * CLIP), strategy=poisson(truncated_batch_size=30)),
        "sampler on the books",
    ),
    "batches that are cut off earlier than is booked": (
        lambda: run_loop(
            gaussian(SIGMA * CLIP), strategy=poisson(truncated_batch_size=30), books=book_cut(40)
        ),
        "sampler on the books",
    ),
    "fixed batches with half of the noise, booked as such with all of it": (
        lambda: run_loop(
            gaussian(SIGMA * CLIP / 2),
            strategy=draw_fixed(),
            books=book_fixed(),
            steps=STEPS,
            noise_multiplier=SIGMA / 2,
        ),
        "noise on the books",
    ),
    "the same batches in every epoch": (
        lambda: run_loop(
            gaussian(SIGMA * CLIP), drawn=[*poisson(steps=6).batch_iterator(RECORDS, 4)] * 4
        ),
        "fresh batches",
    ),
    "correlated noise that is not declared": (
        lambda: run_loop(_correlated(1.0)),
        "independence of steps",
    ),
    "correlated noise without its column norm": (
        lambda: _run_correlated(_correlated(1.0), _mix()),
        "noise scale",
    ),
    "groups divided anew in every cycle": (_run_out_of_turn, "turns of records"),
    "two batches per step": (lambda: _run_several(2, 1), "steps per batch"),
    "two steps per batch": (lambda: _run_several(1, 2), "steps per batch"),
    "no clipping, not replayed": (
        lambda: run_loop(gaussian(SIGMA * CLIP), clip=_forget_clipping()),
        "norm of the sum",
    ),
    "no clipping": (
        lambda: _replay(lambda: clipped_grad(measure_loss, l2_clip_norm=jnp.inf)),
        "sensitivity to a replaced record",
    ),
    "clipping layer by layer": (
        lambda: _replay(_clip_by_layer),
        "sensitivity to a removed record",
    ),
    "features centred over the batch": (
        lambda: _replay(_mix_records),
        "sensitivity to a removed record",
    ),
    "pairs of records clipped together": (
        lambda: _replay_optax(2),
        "sensitivity to a removed record",
    ),
    "sum doubled before noise": (
        lambda: _replay(before=lambda sums: jax.tree.map(lambda g: 2 * g, sums)),
        "sensitivity to a removed record",
    ),
    "a key that is always the same": (lambda: _replay(fixed_key=True), "noise scale"),
}  # fmt: skip

RIGHT: dict[str, Program] = {
    "Poisson sampling": lambda: run_loop(gaussian(SIGMA * CLIP)),
    "more noise than booked": lambda: run_loop(gaussian(2 * SIGMA * CLIP)),
    "batches that are cut off as is booked": lambda: run_loop(
        gaussian(SIGMA * CLIP), strategy=poisson(truncated_batch_size=30), books=book_cut(30)
    ),
    "fixed batches, booked as such": lambda: run_loop(
        gaussian(SIGMA * CLIP), strategy=draw_fixed(), books=book_fixed(), steps=STEPS
    ),
    "full batches": lambda: run_loop(
        gaussian(SIGMA * CLIP),
        strategy=poisson(1.0),
        drawn=[np.arange(RECORDS)] * STEPS,
        books=book(rate=1.0),
    ),
    "gradients of unit norm, normalised": lambda: run_loop(
        gaussian(SIGMA / 24),
        clip=clipped_grad(
            measure_loss, l2_clip_norm=CLIP, rescale_to_unit_norm=True, normalize_by=24.0
        ),
    ),
    "microbatches": lambda: run_loop(
        gaussian(SIGMA * CLIP),
        clip=clipped_grad(measure_loss, l2_clip_norm=CLIP, microbatch_size=8),
    ),
    "correlated noise by a streaming matrix": lambda: _run_correlated(
        _correlated(COLUMN), toeplitz.inverse_as_streaming_matrix(BANDS)
    ),
    "correlated noise by a dense matrix": lambda: _run_correlated(_dense(COLUMN), _mix()),
    "plan of independent noise": lambda: _run_plan(strategy=np.ones(1)),
    "plan of banded noise": lambda: _run_plan(strategy=BANDS),
    "plan whose batches are all cut off": lambda: _run_plan(
        strategy=np.ones(1), truncated_batch_size=30, num_examples=RECORDS
    ),
    "bfloat16 weights, and noise in float32": lambda: run_loop(
        gaussian(SIGMA * CLIP, dtype=jnp.float32),
        dtype=jnp.bfloat16,
        strategy=poisson(steps=8 * STEPS),
        books=book(steps=8 * STEPS),
    ),
    "all steps in one scan": _run_scan,
    "one step, replayed": _replay,
    "a step of optax's own aggregate, replayed": _replay_optax,
}  # fmt: skip
