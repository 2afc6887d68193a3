import numpy as np
from jax_privacy import accounting, batch_selection

event = accounting.dpsgd_event(1.0, 1000, sampling_prob=0.01)
strategy = batch_selection.CyclicPoissonSampling(sampling_prob=0.01, iterations=1000)
for epoch in range(3):
    order = np.random.permutation(len(x))
    for i in range(0, len(x), 10):
        draw(order[i : i + 10])
for batch in strategy.batch_iterator(len(x)):
    step(batch)
