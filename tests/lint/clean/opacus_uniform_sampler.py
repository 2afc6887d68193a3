import torch
from opacus.accountants import RDPAccountant
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader

generator = torch.Generator()
sampler = UniformWithReplacementSampler(
    num_samples=len(train_set), sample_rate=0.01, generator=generator
)
train_loader = DataLoader(train_set, batch_sampler=sampler)
warm_up = DataLoader(train_set, shuffle=True)
accountant = RDPAccountant()
