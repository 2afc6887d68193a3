# The engine must not replace a loader that samples by Poisson already.
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader

private = DPDataLoader.from_data_loader(plain_loader)
PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=private,
    noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False,
)
