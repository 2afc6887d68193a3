from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader

BATCH_SIZE = 256
N = 60_000


def train(model, optimizer, dataset):
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)  # expect: SHUF002
    accountant = RDPAccountant()
    for epoch in range(15):
        for x, y in loader:
            step(model, optimizer, x, y)
            accountant.step(noise_multiplier=1.1, sample_rate=BATCH_SIZE / N)
    return accountant.get_epsilon(delta=1e-5)
