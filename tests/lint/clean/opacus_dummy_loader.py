# The engine wants a loader to learn sizes from; batches come from elsewhere.
from opacus import PrivacyEngine

model, optimizer, _ = PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=dummy_loader,
    noise_multiplier=1.0, max_grad_norm=1.0,
)
for batch in drawn_elsewhere():
    step(batch)
