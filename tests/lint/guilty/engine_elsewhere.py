from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader


def with_opacus(model, optimizer, loader):
    return PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0,
    )


def by_hand(model, dataset):
    accountant = RDPAccountant()
    for batch in DataLoader(dataset, batch_size=64, shuffle=True):  # expect: SHUF002
        clip_and_step(model, batch)
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    return accountant.get_epsilon(delta=1e-5)
