import dp_accounting
from torch.utils.data import DataLoader as DL

event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(64 / 10000, dp_accounting.GaussianDpEvent(0.8)), 3000
)
epsilon = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
batches = DL(records, batch_size=64, shuffle=True, drop_last=True)  # expect: SHUF002
