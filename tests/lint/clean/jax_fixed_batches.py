import tensorflow as tf
from jax_privacy.accounting import analysis, calibrate

sigma = calibrate.calibrate_noise_multiplier(
    target_epsilon=1.0, accountant=accountant, batch_sizes=64, num_updates=100,
    num_samples=1000, target_delta=1e-5,
    sampling_method=analysis.SamplingMethod.FIXED_BATCH_SIZE,
)
data = tf.data.Dataset.from_tensor_slices(x).shuffle(1000).batch(64)
