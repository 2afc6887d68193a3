# Only what is measured on is shuffled.
from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader

accountant = RDPAccountant()
test_loader = DataLoader(images, batch_size=512, shuffle=True)
loaders = {
    "train": DataLoader(train_set, batch_sampler=coins),
    "val": DataLoader(val_set, batch_size=512, shuffle=True),
}
loss = evaluate(model, eval_data=DataLoader(held_out, shuffle=True))
