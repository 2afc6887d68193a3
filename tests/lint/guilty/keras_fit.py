import tensorflow as tf
from tensorflow_privacy.privacy.analysis import compute_dp_sgd_privacy_lib
from tensorflow_privacy.privacy.optimizers.dp_optimizer_keras import DPKerasSGDOptimizer

epochs = 15
batch_size = 250
optimizer = DPKerasSGDOptimizer(l2_norm_clip=1.5, noise_multiplier=1.3, learning_rate=0.25)
model.compile(optimizer=optimizer, loss=loss)
model.fit(x_train, y_train, epochs=epochs, batch_size=batch_size)  # expect: SHUF006
compute_dp_sgd_privacy_lib.compute_dp_sgd_privacy(60000, batch_size, 1.3, epochs, 1e-5)
