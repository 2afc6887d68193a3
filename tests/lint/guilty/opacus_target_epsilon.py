import opacus


class Client:
    def start(self, loader):
        self.engine = opacus.privacy_engine.PrivacyEngine(accountant="prv")
        self.model, self.optimizer, self.loader = self.engine.make_private_with_epsilon(
            module=self.model, optimizer=self.optimizer, data_loader=loader,
            target_epsilon=3.0, target_delta=1e-6, epochs=10, max_grad_norm=1.2,
            poisson_sampling=False,  # expect: SHUF001
        )
