from opacus.accountants import PRVAccountant
from torch.utils.data import DataLoader, RandomSampler

accountant = PRVAccountant()
loader = DataLoader(data, batch_size=50, sampler=RandomSampler(data))  # expect: SHUF002
