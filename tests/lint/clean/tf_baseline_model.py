# Two models, and only the private one has a private optimizer; it is fed a dataset.
import tensorflow as tf
from tensorflow_privacy import DPKerasSGDOptimizer, compute_dp_sgd_privacy

plain = tf.keras.Sequential(layers)
plain.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
plain.fit(x, y, batch_size=64)
second = tf.keras.Sequential(layers)
second.compile("adam", loss="mse")
second.fit(x, y, batch_size=64)
private = tf.keras.Sequential(layers)
private.compile(optimizer=DPKerasSGDOptimizer(l2_norm_clip=1, noise_multiplier=1), loss="mse")
private.fit(batches_of(x, y))
compute_dp_sgd_privacy(1000, 64, 1.0, 3, 1e-5)
