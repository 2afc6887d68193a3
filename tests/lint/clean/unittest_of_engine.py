import unittest

from opacus import PrivacyEngine


class EngineTest(unittest.TestCase):
    def _setUp(self):
        return PrivacyEngine().make_private(
            module=m, optimizer=o, data_loader=d, noise_multiplier=1.0, max_grad_norm=1.0,
            poisson_sampling=False,
        )
