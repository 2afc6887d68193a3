def account(steps):
    from opacus.accountants import GaussianAccountant

    accountant = GaussianAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    return accountant.get_epsilon(1e-5)


try:
    from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader
except ImportError:
    from torch.utils.data import DataLoader

loader = DataLoader(train_set, shuffle=True, batch_size=100)  # expect: SHUF002
