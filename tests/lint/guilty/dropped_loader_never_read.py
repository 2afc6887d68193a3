import opacus

engine = opacus.PrivacyEngine()
model, optimizer, private_loader = engine.make_private_with_epsilon(
    module=model, optimizer=optimizer,
    data_loader=loader,  # expect: SHUF008
    target_epsilon=2, target_delta=1e-5, epochs=3, max_grad_norm=1,
)
for batch in tqdm(loader):
    step(batch)
