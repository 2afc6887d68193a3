import tensorflow as tf
import tensorflow_privacy as tfp

optimizer = tfp.VectorizedDPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)
one = tf.data.Dataset.from_tensor_slices(a).shuffle(len(a)).batch(10)  # expect: SHUF003
two = tf.data.Dataset.from_tensor_slices(b).batch(10).shuffle(len(b))  # expect: SHUF004
