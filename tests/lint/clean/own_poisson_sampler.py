import torch
from opacus.accountants import PRVAccountant
from torch.utils.data import DataLoader, Sampler


class PoissonBatchSampler(Sampler):
    def __iter__(self):
        while True:
            yield torch.bernoulli(self.rates).nonzero().flatten().tolist()


loader = DataLoader(train_set, batch_sampler=PoissonBatchSampler(train_set))
for_pictures = DataLoader(train_set, batch_size=16, shuffle=True)
accountant = PRVAccountant()
