# The loader is made in one function and handed to the engine in another.
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from torch.utils.data import DataLoader


def build_loader(dataset):
    return DataLoader(dataset, batch_size=64, shuffle=True)


def privatise(model, optimizer, dataset, sigma):
    return PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=build_loader(dataset),
        noise_multiplier=sigma, max_grad_norm=1.0,
    )


def sigma_for(epsilon):
    return get_noise_multiplier(
        target_epsilon=epsilon, target_delta=1e-5, sample_rate=0.01, epochs=3
    )
