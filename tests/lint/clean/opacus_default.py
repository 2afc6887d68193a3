# make_private replaces the shuffled loader by one that samples by Poisson.
from opacus import PrivacyEngine
from torch.utils.data import DataLoader

train_loader = DataLoader(train_set, batch_size=256, shuffle=True)
engine = PrivacyEngine()
model, optimizer, train_loader = engine.make_private(
    module=model, optimizer=optimizer, data_loader=train_loader,
    noise_multiplier=1.1, max_grad_norm=1.0,
)
for x, y in train_loader:
    step(x, y)
print(engine.get_epsilon(delta=1e-5))
