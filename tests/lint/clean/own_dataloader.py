# A class of the project's own that happens to have the name.
from opacus.accountants import RDPAccountant


class DataLoader:
    def __init__(self, dataset, batch_size=1, shuffle=False):
        self.order = draw_by_coins if shuffle else in_order


loader = DataLoader(train_set, batch_size=64, shuffle=True)
accountant = RDPAccountant()
