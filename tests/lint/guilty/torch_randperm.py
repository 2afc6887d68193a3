import torch
from opacus.accountants import RDPAccountant


def fit(x, y, accountant=RDPAccountant()):
    for _ in range(5):
        perm = torch.randperm(len(x))  # expect: SHUF007
        x, y = x[perm], y[perm]
        for i in range(len(x) // 64):
            step(x[i * 64 : (i + 1) * 64], y[i * 64 : (i + 1) * 64])
            accountant.step(noise_multiplier=1.0, sample_rate=64 / 1000)
