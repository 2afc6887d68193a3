import tensorflow as tf
from tensorflow_privacy import DPKerasAdamOptimizer

optimizer = DPKerasAdamOptimizer(l2_norm_clip=1.0, noise_multiplier=0.8)
train_data = tf.data.Dataset.from_tensor_slices((x, y)).batch(64).shuffle(1000)  # expect: SHUF004
