import dp_accounting
import tensorflow as tf

SIZE = 60 * 1000
event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
indices = tf.data.Dataset.range(SIZE).shuffle(1000)  # expect: SHUF005
