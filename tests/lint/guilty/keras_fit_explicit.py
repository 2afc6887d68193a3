import keras
from jax_privacy import keras_api

params = keras_api.DPKerasConfig(
    epsilon=1.1, delta=1e-5, clipping_norm=1.0, batch_size=512,
    gradient_accumulation_steps=1, train_steps=585, train_size=59904,
)
model = keras_api.make_private(build(), params)
model.compile(optimizer="adam", loss="categorical_crossentropy")
model.fit(x, y, epochs=5, shuffle=True)  # expect: SHUF006
