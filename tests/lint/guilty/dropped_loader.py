from opacus import PrivacyEngine
from torch.utils.data import DataLoader


def main():
    train_loader = DataLoader(dataset, batch_size=64, shuffle=True)
    engine = PrivacyEngine()
    model, optimizer, _ = engine.make_private(
        module=net, optimizer=sgd,
        data_loader=train_loader,  # expect: SHUF008
        noise_multiplier=1.0, max_grad_norm=1.0,
    )
    for epoch in range(10):
        for i, (x, y) in enumerate(train_loader):
            train(model, optimizer, x, y)
    print(engine.get_epsilon(1e-5))
