# The Gaussian accountant told that batches are not Poisson.
from opacus.accountants import GaussianAccountant
from torch.utils.data import DataLoader

accountant = GaussianAccountant()
loader = DataLoader(train_set, shuffle=True)
epsilon = accountant.get_epsilon(delta=1e-5, poisson=False)
