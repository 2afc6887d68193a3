from opacus import PrivacyEngine as PE

POISSON = False
NOISE = 0.9


def privatise(model, optimizer, loader):
    pe = PE()
    return pe.make_private(
        module=model, optimizer=optimizer, data_loader=loader,
        noise_multiplier=NOISE, max_grad_norm=1.0,
        poisson_sampling=POISSON,  # expect: SHUF001
    )
