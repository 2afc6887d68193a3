# Batched to be read fast, taken apart again, and shuffled as records for pictures only.
import tensorflow as tf
import tensorflow_privacy as tfp

optimizer = tfp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)
records = tf.data.TFRecordDataset(files).batch(1000).map(decode).unbatch().shuffle(10_000)
