# No privacy is promised here.
import torch
from torch.utils.data import DataLoader, RandomSampler

loader = DataLoader(train_set, batch_size=64, shuffle=True)
other = DataLoader(train_set, sampler=RandomSampler(train_set))
for epoch in range(3):
    order = torch.randperm(len(train_set))
    for i in range(0, len(order), 64):
        step(order[i : i + 64])
