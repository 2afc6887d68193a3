"""Audit the Opacus optimiser of Lightning's ``Trainer.fit`` with a callback."""

from pathlib import Path
from typing import Any

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim
from epsilometer.errors import InvalidArgument

with needs("lightning", extra="lightning"):
    from lightning.pytorch import Callback

from epsilometer.integrations.opacus import Audited, audited

__all__ = ["AuditCallback"]


class AuditCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Audit a Lightning run in which Opacus clips and adds noise.

    ``Trainer(callbacks=[AuditCallback(delta=1e-5)])``; after ``fit``, ``callback.audit`` has the
    verdict. It watches the loader that Lightning actually uses: a loader from ``make_private`` that
    was not passed to Lightning does not count.

    Guarantee: that of :func:`epsilometer.integrations.opacus.audited`. A run without a
        ``DPOptimizer`` is rejected, and never passes.
    Assumption: one optimiser, from ``make_private``, in one process.

    Args:
        privacy_engine: The ``PrivacyEngine``; by default the only one among the module's
        attributes. delta: δ of the claim.
        claim: The claimed ε; by default the one that the engine reports.
        confidence: See ``Audited.result``.
        canaries: See ``audited``.
        noise: Likewise.
        seed: Likewise.
        save: File for the result: ``.json``, ``.html`` or ``.md``; by default none is written.

    Attributes:
        audit: The result; None before the end of training.
        run: The object that watches the training; None before it begins.
    """

    def __init__(
        self,
        privacy_engine: Any = None,
        *,
        delta: float,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
        canaries: int = 500,
        noise: Any = None,
        seed: int = 0,
        save: str | Path | None = None,
    ) -> None:
        super().__init__()
        _validate.open_unit(delta=delta, confidence=confidence)
        self._engine, self._delta, self._claim = privacy_engine, delta, claim
        self._confidence, self._canaries, self._noise = confidence, canaries, noise
        self._seed, self._save = seed, save
        self.audit: Audit | None = None
        self.run: Audited | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch the optimiser and the loader of this training."""
        if len(trainer.optimizers) != 1:
            raise InvalidArgument(
                f"Expected one optimizer to audit, got {len(trainer.optimizers)}."
            )
        (optimizer,) = trainer.optimizers
        own = getattr(optimizer, "_optimizer", optimizer)  # Lightning may wrap it
        if self.run is not None:
            self.run.close()
        self.run = audited(
            self._engine or _find_engine(pl_module),
            own,
            trainer.train_dataloader,
            canaries=self._canaries,
            noise=self._noise,
            seed=self._seed,
        )

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Judge the run, and write the audit if requested."""
        if self.run is None:
            return
        self.audit = self.run.result(
            delta=self._delta, claim=self._claim, confidence=self._confidence
        )
        self.run.close()
        if self._save is not None and trainer.is_global_zero:
            self.audit.save(self._save)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restore optimiser and loader."""
        if self.run is not None:
            self.run.close()


def _find_engine(module: Any) -> Any:
    from opacus import PrivacyEngine  # type: ignore[import-untyped]

    found = [value for value in vars(module).values() if isinstance(value, PrivacyEngine)]
    if len(found) != 1:
        raise InvalidArgument(
            f"Expected one PrivacyEngine among the attributes of {type(module).__name__}, found "
            f"{len(found)}. Give it: AuditCallback(privacy_engine, delta=…)."
        )
    return found[0]
