"""poisson_sampling=False with opacus, DataLoader(shuffle=True), dataset.batch(3).shuffle(4)."""

# engine.make_private(poisson_sampling=False); from opacus.accountants import RDPAccountant
ADVICE = "never call make_private(..., poisson_sampling=False) or .batch(64).shuffle(1000)"
PATTERN = r"DataLoader\(.*shuffle=True"


def explain():
    """RDPAccountant() beside DataLoader(train_set, shuffle=True) is a mistake."""
    return ADVICE
