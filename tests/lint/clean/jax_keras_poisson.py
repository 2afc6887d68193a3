import keras
from jax_privacy import keras_api

params = keras_api.DPKerasConfig(
    epsilon=1.0, delta=1e-5, clipping_norm=1.0, batch_size=512, gradient_accumulation_steps=1,
    train_steps=100, train_size=50000, poisson_sampling_in_fit=True,
)
model = keras_api.make_private(model, params)
model.fit(x=x, y=y, epochs=5, batch_size=512)
