# An accountant that is imported and not called promises nothing.
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from opacus.accountants import RDPAccountant


def epsilon(accountant: "RDPAccountant", delta):
    return accountant.get_epsilon(delta)


loader = DataLoader(train_set, shuffle=True)
