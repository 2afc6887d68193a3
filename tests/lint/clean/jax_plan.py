import tensorflow as tf
from jax_privacy import execution_plan

plan = execution_plan.DpsgdConfig(iterations=100, l2_clip_norm=1.0).make(flags)
shown = tf.data.Dataset.from_tensor_slices(x).shuffle(1000).batch(64)
for batch in plan.batch_selection_strategy.batch_iterator(1000):
    step(batch)
