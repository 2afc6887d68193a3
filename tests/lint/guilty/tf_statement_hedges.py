import tensorflow_datasets as tfds
from tensorflow_privacy import compute_dp_sgd_privacy_statement

ds = tfds.load("mnist", split="train").shuffle(60_000).batch(128)  # expect: SHUF003
print(compute_dp_sgd_privacy_statement(60_000, 128, 10, 1.0, 1e-5))
