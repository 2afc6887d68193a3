from opacus import PrivacyEngine

options = {"noise_multiplier": 1.0, "poisson_sampling": False}
options["poisson_sampling"] = True
PrivacyEngine().make_private(module=m, optimizer=o, data_loader=d, max_grad_norm=1, **options)
