import tensorflow as tf
import tensorflow_privacy as tfp

N_TRAIN = 60000
BUFFER = 10_000
BATCH = 256

ds = tf.data.Dataset.from_tensor_slices(train)
ds = ds.shuffle(BUFFER).repeat().batch(BATCH)  # expect: SHUF005
eps, order = tfp.compute_dp_sgd_privacy(
    n=N_TRAIN, batch_size=BATCH, noise_multiplier=1.1, epochs=15, delta=1e-5
)
