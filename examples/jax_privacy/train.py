"""Train a small model with JAX-Privacy, and audit that same run.

    pip install 'epsilometer[jax]'
    python examples/jax_privacy/train.py                  # as it should be
    python examples/jax_privacy/train.py --noise 0.5      # half of the noise that is booked
    python examples/jax_privacy/train.py --shuffle        # batches of a shuffled loader

Lines that the audit adds to the loop end in "# audit".
"""

import argparse

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import batch_selection, clipped_grad, noise_addition

import epsilometer as em
from epsilometer.integrations import jax_privacy as audits

RECORDS, STEPS, RATE, SIGMA = 600, 60, 0.1, 1.0


def measure_loss(params, batch):
    """Return the logistic loss."""
    features, labels = batch
    logits = features @ params["weight"] + params["bias"]
    return jnp.mean(jnp.logaddexp(0.0, -logits * (2 * labels - 1)))


def train(*, noise: float = 1.0, shuffle: bool = False, seed: int = 0) -> em.Audit:
    """Train, and return the audit of the run."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(RECORDS, 40)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.float32)

    gradient = clipped_grad(measure_loss, l2_clip_norm=1.0)
    privatizer = noise_addition.gaussian_privatizer(
        stddev=noise * SIGMA * gradient.l2_norm_bound, prng_key=seed
    )
    strategy = batch_selection.CyclicPoissonSampling(sampling_prob=RATE, iterations=STEPS)
    books = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(SIGMA)), STEPS
    )
    run = audits.audited(  # audit
        privatizer, noise_multiplier=SIGMA, clip_norm=gradient.l2_norm_bound,  # audit
        books=books, records=RECORDS, batches=strategy, canaries=40,  # audit
    )  # audit  # fmt: skip
    privatizer = run.privatizer  # audit

    @jax.jit
    def step(params, state, features, labels, padding):
        sums = gradient(params, (features, labels), is_padding_example=padding)
        noisy, state = privatizer.update(sums, state)
        size = RATE * RECORDS
        return jax.tree.map(lambda p, g: p - 0.5 * g / size, params, noisy), state

    params = {"weight": jnp.zeros(40), "bias": jnp.zeros(())}
    state = privatizer.init(params)
    batches = strategy.batch_iterator(RECORDS, rng=seed)
    if shuffle:
        size = round(RATE * RECORDS)
        epochs = [
            rng.permutation(RECORDS).reshape(-1, size) for _ in range(STEPS * size // RECORDS)
        ]
        batches = np.concatenate(epochs)
    for batch in run.watch_batches(batches):  # audit
        own = batch_selection.pad_to_multiple_of(batch, 128)
        params, state = step(params, state, features[own], labels[own], own < 0)
    return run.result(delta=1e-5)  # audit


def main() -> None:
    """Train as asked, print the audit, and exit as ``epsilometer`` does."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--noise", type=float, default=1.0, help="Share of the booked noise.")
    parser.add_argument("--shuffle", action="store_true", help="Shuffle instead of sampling.")
    audit = train(**vars(parser.parse_args()))
    print(audit)
    raise SystemExit(audit.exit_code)


if __name__ == "__main__":
    main()
