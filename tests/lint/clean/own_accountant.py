# An accountant of the project's own, about which nothing is known.
from torch.utils.data import DataLoader


class RDPAccountant:
    """Accounts for shuffled batches; not the one of opacus."""


accountant = RDPAccountant()
loader = DataLoader(train_set, shuffle=True)
