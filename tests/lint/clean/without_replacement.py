# Another accountant: batches of fixed size without replacement.
import dp_accounting
from torch.utils.data import DataLoader

event = dp_accounting.SampledWithoutReplacementDpEvent(
    60000, 256, dp_accounting.GaussianDpEvent(1.0)
)
accountant = dp_accounting.rdp.RdpAccountant(
    neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
)
accountant.compose(event, 1000)
loader = DataLoader(train_set, batch_size=256, shuffle=True)
