import tensorflow as tf
import tensorflow_privacy as tfp

optimizer = tfp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)
model.compile(optimizer=optimizer, loss=loss)
model.fit(batches_of(x, y), epochs=3)
test_data = tf.data.Dataset.from_tensor_slices(x_test).shuffle(100).batch(64)
model.evaluate(x_test, y_test, batch_size=64)
