from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader

accountant = RDPAccountant()
loader = DataLoader(train_set, batch_size=64, shuffle=False)
other = DataLoader(train_set, 64, False)
third = DataLoader(train_set, batch_size=64)
fourth = DataLoader(train_set, shuffle=shuffle_from_somewhere)
