import torch
from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

accountant = RDPAccountant()
a = DataLoader(train_set, sampler=RandomSampler(train_set, replacement=True))
b = DataLoader(train_set, sampler=SequentialSampler(train_set))
c = DataLoader(train_set, sampler=DistributedSampler(train_set, shuffle=False))
