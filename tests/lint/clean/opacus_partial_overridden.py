from functools import partial

from opacus import PrivacyEngine

privatise = partial(PrivacyEngine().make_private, max_grad_norm=1.0, poisson_sampling=False)
privatise(module=m, optimizer=o, data_loader=d, noise_multiplier=1.0, poisson_sampling=True)
