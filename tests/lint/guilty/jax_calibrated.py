import tensorflow as tf
from jax_privacy.accounting import analysis, calibrate

accountant = analysis.DpsgdTrainingAccountant(dp_accountant_config=config)
sigma = calibrate.calibrate_noise_multiplier(
    target_epsilon=1.0, accountant=accountant, batch_sizes=1024, num_updates=2000,
    num_samples=50_000, target_delta=1e-5,
)
data = tf.data.Dataset.from_tensor_slices(x).repeat().shuffle(50_000).batch(1024)  # expect: SHUF003
