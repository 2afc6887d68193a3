# What the caller decides is not known here.
from opacus import PrivacyEngine


def privatise(model, optimizer, loader, args, poisson_sampling=True):
    engine = PrivacyEngine()
    engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0,
        max_grad_norm=1.0, poisson_sampling=args.poisson,
    )
    return engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0,
        max_grad_norm=1.0, poisson_sampling=poisson_sampling,
    )
