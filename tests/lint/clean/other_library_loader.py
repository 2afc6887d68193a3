import mindspore.dataset as ds
from mylibrary import DataLoader
from opacus.accountants import RDPAccountant

loader = DataLoader(train_set, batch_size=64, shuffle=True)
third = ds.GeneratorDataset(source, shuffle=True)
accountant = RDPAccountant()
