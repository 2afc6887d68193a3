import dp_accounting
import tensorflow as tf


def pipeline(files):
    data = tf.data.TFRecordDataset(files)
    data = data.map(decode).padded_batch(32)
    if CACHED:
        data = data.cache()
    data = data.shuffle(500).prefetch(1)  # expect: SHUF004
    return data


def epsilon(steps):
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    return dp_accounting.rdp.RdpAccountant().compose(event, steps).get_epsilon(1e-6)
