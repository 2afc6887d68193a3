import opacus
from torch.utils import data

loader = data.DataLoader(train_set, 64, True)
model, optimizer, loader = opacus.PrivacyEngine(accountant="rdp").make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, target_epsilon=3,
    target_delta=1e-5, epochs=10, max_grad_norm=1.0, poisson_sampling=True,
)
