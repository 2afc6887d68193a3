from opacus.accountants.analysis.rdp import compute_rdp
from torch.utils.data import DataLoader


def budget():
    settings = dict(batch_size=100, shuffle=True, pin_memory=True)  # expect: SHUF002
    loader = DataLoader(corpus, **settings)
    return loader, compute_rdp(q=100 / 10000, noise_multiplier=1.0, steps=500, orders=ORDERS)
