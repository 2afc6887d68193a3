"""Check one step of JAX-Privacy or TF-Privacy, made of the library's own functions.

    python reproductions/found/library_steps.py jax
    python reproductions/found/library_steps.py tensorflow

Needs an environment with epsilometer and the library. Each step clips gradients of single records
of a small network and adds noise, as the library's examples do; σ = 1, C = 1, 32 records.
"""

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

import epsilometer as em

RECORDS, FEATURES, HIDDEN = 32, 12, 16
StepFunction = Callable[[Any, np.random.Generator], Any]


def make_batch() -> tuple[Any, Any]:
    """Return records and labels, always the same."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, RECORDS)
    return rng.normal(size=(RECORDS, FEATURES)).astype(np.float32), labels


def make_weights() -> list[Any]:
    """Return the weights of the network, always the same."""
    rng = np.random.default_rng(1)
    shapes = [(FEATURES, HIDDEN), (HIDDEN, 1)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def make_jax_steps() -> dict[str, StepFunction]:
    """Return a step by ``clipped_grad`` and ``gaussian_privatizer``."""
    import jax
    from jax_privacy import clipping, noise_addition

    weights = [jax.numpy.asarray(weight) for weight in make_weights()]

    def compute_loss(params: Any, inputs: Any, labels: Any) -> Any:
        scores = jax.numpy.tanh(inputs @ params[0]) @ params[1]
        signs = 2 * labels.reshape(-1, 1) - 1
        return jax.numpy.mean(jax.nn.softplus(-signs * scores))

    def take_step(batch: Any, rng: np.random.Generator) -> Any:
        clipped = clipping.clipped_grad(compute_loss, l2_clip_norm=1.0, batch_argnums=(1, 2))
        total = clipped(weights, *batch)
        privatizer = noise_addition.gaussian_privatizer(
            stddev=1.0, prng_key=jax.random.key(int(rng.integers(2**31)))
        )
        released, _ = privatizer.update(total, privatizer.init(weights))
        return [np.asarray(part, np.float64) for part in released]

    return {"clipped_grad and gaussian_privatizer": take_step}


def make_tensorflow_steps() -> dict[str, StepFunction]:
    """Return steps by the two Keras optimisers, one microbatch per record."""
    import tensorflow as tf
    from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras as plain
    from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras_vectorized as vectorized

    weights = [tf.Variable(weight) for weight in make_weights()]

    def make_step(kind: Any) -> StepFunction:
        def take_step(batch: Any, rng: np.random.Generator) -> Any:
            tf.random.set_seed(int(rng.integers(2**31)))
            inputs, labels = (tf.convert_to_tensor(part) for part in batch)
            groups = len(batch[0])  # what the mean is divided by
            optimizer = kind(
                l2_norm_clip=1.0, noise_multiplier=1.0, num_microbatches=groups, learning_rate=0.1
            )

            def compute_losses() -> Any:
                scores = tf.tanh(inputs @ weights[0]) @ weights[1]
                signs = tf.cast(2 * tf.reshape(labels, (-1, 1)) - 1, tf.float32)
                return tf.reshape(tf.math.softplus(-signs * scores), (-1,))

            tape = tf.GradientTape(persistent=True)
            found = optimizer._compute_gradients(compute_losses, weights, tape=tape)
            return [np.asarray(part, np.float64) * groups for part, _ in found]

        return take_step

    return {
        "DPKerasSGDOptimizer": make_step(plain.DPKerasSGDOptimizer),
        "VectorizedDPKerasSGDOptimizer": make_step(vectorized.VectorizedDPKerasSGDOptimizer),
    }


LIBRARIES = {
    "jax": ("jax-privacy", make_jax_steps),
    "tensorflow": ("tensorflow-privacy", make_tensorflow_steps),
}


def audit_step(step: StepFunction, *, steps: int = 64) -> em.Audit:
    """Check one step at default settings."""
    subject = em.Step(step, make_batch(), clip_norm=1.0, noise_multiplier=1.0, steps=steps)
    return em.audit(subject)


def main() -> int:
    """Print what the checks say of every step of a library."""
    package, make_steps = LIBRARIES[sys.argv[1]]
    sys.stdout.write(f"{package} {version(package)}\n")
    codes = []
    for name, step in make_steps().items():
        audit = audit_step(step)
        finding = audit.conformance
        assert finding is not None
        codes.append(audit.exit_code)
        sys.stdout.write(f"{name}: {finding.verdict}\n")
        for check in finding.checks:
            sys.stdout.write(f"  {check.outcome}: {check.name} ({check.seen})\n")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
