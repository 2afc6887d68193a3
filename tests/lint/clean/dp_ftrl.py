# DP-FTRL needs no sampling: its accountant counts how often a record takes part.
import tensorflow as tf
import tensorflow_privacy as tfp

optimizer = tfp.DPFTRLTreeAggregationOptimizer(tf.keras.optimizers.SGD(0.1), query)
data = tf.data.Dataset.from_tensor_slices(x).shuffle(1000).batch(64)
rdp = tfp.compute_rdp_tree_restart(1.0, [10, 10], orders)
