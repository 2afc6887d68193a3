# Without noise nothing is promised: ε is infinite, and reported so.
from opacus import PrivacyEngine

PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=loader,
    noise_multiplier=0.0, max_grad_norm=1.0, poisson_sampling=False,
)
