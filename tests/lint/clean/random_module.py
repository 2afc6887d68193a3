# Things that are called shuffle and batch, and are not datasets.
import random

import dp_accounting
import numpy as np
import tensorflow as tf

event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
random.shuffle(names)
np.random.default_rng(0).shuffle(weights)
deck.shuffle()
deck.shuffle(3).deal()
groups = [names[i : i + 10] for i in range(0, len(names), 10)]
order = np.random.permutation(10)
