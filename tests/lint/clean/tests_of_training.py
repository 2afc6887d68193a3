# Tests run private code on toy data; no ε leaves them.
import torch
from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader, TensorDataset


def test_training_steps_are_counted():
    loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4, shuffle=True)
    accountant = RDPAccountant()
    for _ in loader:
        accountant.step(noise_multiplier=1.0, sample_rate=0.5)
    assert len(accountant) == 1
