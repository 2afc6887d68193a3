import torch
import torch.distributed
from opacus.accountants import RDPAccountant
from torch.utils.data.distributed import DistributedSampler

sampler = DistributedSampler(train_set, num_replicas=8, rank=0)  # expect: SHUF002
accountant = RDPAccountant()
