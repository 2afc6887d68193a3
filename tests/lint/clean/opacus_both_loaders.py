# The private loader is trained on; the old one is used to measure accuracy.
from opacus import PrivacyEngine
from torch.utils.data import DataLoader

loader = DataLoader(train_set, batch_size=64, shuffle=True)
model, optimizer, private_loader = PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=loader,
    noise_multiplier=1.0, max_grad_norm=1.0,
)
for x, y in private_loader:
    step(x, y)
for x, y in loader:
    count(x, y)
