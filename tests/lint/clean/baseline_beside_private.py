# The baseline shuffles, and promises nothing.
import dp_accounting
from torch.utils.data import DataLoader


def train_non_private(dataset):
    return fit(DataLoader(dataset, batch_size=64, shuffle=True))


def baseline(dataset):
    return fit(DataLoader(dataset, batch_size=64, shuffle=True))


def epsilon(steps):
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    return dp_accounting.pld.PLDAccountant().compose(event, steps).get_epsilon(1e-5)
