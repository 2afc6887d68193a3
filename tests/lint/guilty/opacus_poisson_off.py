import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader

train_loader = DataLoader(dataset, batch_size=256, shuffle=True)
engine = PrivacyEngine()
model, optimizer, train_loader = engine.make_private(
    module=model,
    optimizer=optimizer,
    data_loader=train_loader,
    noise_multiplier=1.1,
    max_grad_norm=1.0,
    poisson_sampling=False,  # expect: SHUF001
)
print(engine.get_epsilon(delta=1e-5))
