import tensorflow as tf
from dp_accounting import PoissonSampledDpEvent


def train(data):
    rate = 500 / 45_000
    event = PoissonSampledDpEvent(sampling_probability=rate, event=noise)
    for batch in data.shuffle(2048, reshuffle_each_iteration=True).batch(500):  # expect: SHUF005
        step(batch, event)
