from opacus import *

USE_POISSON = True
engine = PrivacyEngine()
engine.make_private(
    module=m, optimizer=o, data_loader=d, noise_multiplier=1.0, max_grad_norm=1.0,
    poisson_sampling=not USE_POISSON,  # expect: SHUF001
)
