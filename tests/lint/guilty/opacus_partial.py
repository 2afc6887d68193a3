import functools

from opacus import PrivacyEngine

engine = PrivacyEngine()
privatise = functools.partial(
    engine.make_private,
    max_grad_norm=1.0,
    poisson_sampling=False,  # expect: SHUF001
)
model, optimizer, loader = privatise(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=2.0
)
