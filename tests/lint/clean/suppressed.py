from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader

PrivacyEngine().make_private(
    module=m, optimizer=o, data_loader=d, noise_multiplier=1.0, max_grad_norm=1.0,
    poisson_sampling=False,  # epsilometer: ignore[SHUF001] the ε of the shuffle is reported
)


def by_hand():
    accountant = RDPAccountant()
    loader = DataLoader(  # epsilometer: ignore[SHUF001, SHUF002]
        train_set,
        shuffle=True,
    )
    again = DataLoader(train_set, shuffle=True)  # epsilometer: ignore
    return accountant, loader, again
