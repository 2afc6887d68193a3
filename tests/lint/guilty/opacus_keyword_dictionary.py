from opacus import PrivacyEngine

options = {
    "noise_multiplier": 1.3,
    "max_grad_norm": 1.0,
    "poisson_sampling": False,  # expect: SHUF001
}
model, optimizer, loader = PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=loader, **options
)
