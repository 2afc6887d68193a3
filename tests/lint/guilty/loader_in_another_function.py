from opacus.accountants import create_accountant
from torch.utils.data import DataLoader


def loaders(train_set, test_set):
    test = DataLoader(test_set, batch_size=512, shuffle=True)
    train = DataLoader(train_set, batch_size=64, shuffle=True)  # expect: SHUF002
    return train, test


def main():
    accountant = create_accountant("prv")
    train, test = loaders(*load())
    fit(train, accountant)
