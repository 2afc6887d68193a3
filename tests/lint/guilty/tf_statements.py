import tensorflow as tf
import tensorflow_privacy


def input_fn(images, labels):
    ds = tf.data.Dataset.from_tensor_slices((images, labels))
    ds = ds.shuffle(buffer_size=len(labels))  # expect: SHUF003
    ds = ds.map(normalise)
    ds = ds.batch(256, drop_remainder=True)
    return ds


optimizer = tensorflow_privacy.DPKerasSGDOptimizer(
    l2_norm_clip=1.0, noise_multiplier=1.1, num_microbatches=256, learning_rate=0.15
)
