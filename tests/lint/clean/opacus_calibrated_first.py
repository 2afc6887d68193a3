# Noise is calibrated by an accountant, then the engine samples by Poisson.
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from torch.utils.data import DataLoader


def main():
    loader = DataLoader(train_set, batch_size=64, shuffle=True)
    sigma = get_noise_multiplier(
        target_epsilon=2, target_delta=1e-5, sample_rate=64 / 1000, epochs=3
    )
    return PrivacyEngine().make_private(
        module=net, optimizer=sgd, data_loader=loader, noise_multiplier=sigma, max_grad_norm=1
    )
