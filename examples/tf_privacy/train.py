"""Train a Keras model with TensorFlow Privacy, audited by one line.

pip install 'epsilometer[tf]'   # Python 3.11
python examples/tf_privacy/train.py
python examples/tf_privacy/train.py --shuffle   # as Keras' own fit() does
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_privacy

from epsilometer.core.audit import Audit
from epsilometer.integrations.tf_privacy import audited, read_books

RECORDS, BATCH, EPOCHS, NOISE = 1_000, 50, 3, 1.1


def train(*, shuffle: bool = False) -> Audit:
    """Train by Poisson sampling, or by shuffling, and return the audit."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(RECORDS, 20)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int64)
    optimizer = tensorflow_privacy.DPKerasSGDOptimizer(
        l2_norm_clip=1.0, noise_multiplier=NOISE, learning_rate=0.2
    )
    run = audited(optimizer, records=RECORDS, batch_size=BATCH)
    model = tf.keras.Sequential([tf.keras.layers.Input((20,)), tf.keras.layers.Dense(2)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    model.compile(optimizer=optimizer, loss=loss)
    if shuffle:
        model.fit(features, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    else:
        for _ in range(EPOCHS * RECORDS // BATCH):
            drawn = rng.random(RECORDS) < BATCH / RECORDS
            model.train_on_batch(features[drawn], labels[drawn])
    books = read_books(
        number_of_examples=RECORDS,
        batch_size=BATCH,
        num_epochs=EPOCHS,
        noise_multiplier=NOISE,
        used_microbatching=False,
    )
    return run.result(books, delta=1e-5)


def main() -> None:
    """Train as asked, print the audit, and exit as ``epsilometer`` does."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shuffle", action="store_true", help="Let fit() draw the batches.")
    audit = train(**vars(parser.parse_args()))
    print(audit)
    raise SystemExit(audit.exit_code)


if __name__ == "__main__":
    main()
