import numpy as np
from opacus.accountants.analysis import rdp


def train(x, w, epochs, batch, sigma, rng):
    for epoch in range(epochs):
        order = rng.permutation(len(x))  # expect: SHUF007
        for start in range(0, len(x), batch):
            w = step(w, x[order[start : start + batch]], sigma)
    return w, rdp.compute_rdp(q=batch / len(x), noise_multiplier=sigma, steps=100, orders=[2])
