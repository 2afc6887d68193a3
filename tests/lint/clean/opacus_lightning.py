import opacus
from opacus.lightning import DPLightningDataModule
from torch.utils.data import DataLoader


class Data:
    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=64, shuffle=True)


module = DPLightningDataModule(Data())
accountant = opacus.accountants.RDPAccountant()
