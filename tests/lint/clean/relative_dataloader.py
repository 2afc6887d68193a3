from opacus.accountants import RDPAccountant

from .loading import DataLoader
from . import sampling

loader = DataLoader(train_set, batch_size=64, shuffle=True)
other = sampling.DataLoader(train_set, shuffle=True)
accountant = RDPAccountant()
