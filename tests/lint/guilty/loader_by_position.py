import torch.utils.data as tud
from opacus.accountants.utils import get_noise_multiplier

sigma = get_noise_multiplier(
    target_epsilon=4.0, target_delta=1e-5, sample_rate=128 / 50000, epochs=20
)
train_iter = tud.DataLoader(train_set, 128, True, num_workers=4)  # expect: SHUF002
