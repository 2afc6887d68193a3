from opacus import PrivacyEngine
from torch.utils.data import DataLoader

loader = DataLoader(train_set, batch_size=64, shuffle=True)  # expect: SHUF002
privacy_engine = PrivacyEngine(
    model, batch_size=64, sample_size=60000, alphas=range(2, 32),
    noise_multiplier=1.3, max_grad_norm=1.0,
)
privacy_engine.attach(optimizer)
