# One Gaussian event an epoch, at rate 1: holds for every order of the records.
import dp_accounting
from dp_accounting.pld import privacy_loss_distribution
from torch.utils.data import DataLoader

RATE = 1.0
event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 15)
same = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(4.0))
loss = privacy_loss_distribution.from_gaussian_mechanism(standard_deviation=4.0, sensitivity=1)
loader = DataLoader(train_set, batch_size=256, shuffle=True)
