import numpy as np
from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader

accountant = RDPAccountant()
loader = DataLoader(train_set, shuffle=True)  # to show pictures
for step in range(1000):
    batch = np.flatnonzero(rng.random(n) < q)
    update(batch)
    accountant.step(noise_multiplier=1.0, sample_rate=q)
