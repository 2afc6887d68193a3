from dp_accounting.pld import privacy_loss_distribution as pld
from torch.utils.data import DataLoader

loss = pld.from_gaussian_mechanism(standard_deviation=1.0, sampling_prob=0.01)
loader = DataLoader(train_set, shuffle=True, batch_size=100)  # expect: SHUF002
