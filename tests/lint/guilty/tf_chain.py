import tensorflow as tf
from tensorflow_privacy.privacy.analysis.compute_dp_sgd_privacy_lib import compute_dp_sgd_privacy

train = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .shuffle(60000)  # expect: SHUF003
    .batch(250)
    .prefetch(2)
)
epsilon, _ = compute_dp_sgd_privacy(60000, 250, 1.3, 15, 1e-5)
