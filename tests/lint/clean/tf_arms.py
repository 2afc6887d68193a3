# Batching and shuffling in different arms of an if are not one after the other.
import tensorflow as tf
import tensorflow_privacy as tfp

optimizer = tfp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0)


def pipeline(data, training):
    if not training:
        data = data.batch(100)
    else:
        data = data.shuffle(len(data))
    return data


def other(data, by_hand):
    if by_hand:
        return data.batch(8)
    return data.shuffle(9)
