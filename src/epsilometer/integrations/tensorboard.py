"""Log audits to TensorBoard, through the writer of a training run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epsilometer._files import write_whole
from epsilometer.core.audit import Audit
from epsilometer.errors import InvalidArgument
from epsilometer.files.history.logged import log_to


def log_audit(
    audit: Audit, writer: Any, *, step: int | None = None, prefix: str = "privacy."
) -> None:
    """Log an audit through a writer: scalars, texts, and files in its folder.

    Guarantee: a bound that is not valid is never logged as ``epsilon_bound``. The whole audit is
        saved next to the events, as ``result.json`` and ``report.html``.
    Assumption: the writer writes to a local folder.

    Args:
        audit: Audit of any subject. Several views are tagged ``view-1/privacy.epsilon_bound`` etc.
        writer: A ``SummaryWriter`` of ``torch.utils.tensorboard`` or tensorboardX, such as
            Lightning's ``TensorBoardLogger(…).experiment``.
        step: Training step of the audit.
        prefix: Prefix of all names, which avoids clashes.
    """
    missing = [n for n in ("add_scalar", "add_text", "log_dir") if not hasattr(writer, n)]
    if missing:
        raise InvalidArgument(
            f"Expected a SummaryWriter, got {type(writer).__name__}, which has no "
            f"{' and no '.join(missing)}."
        )
    log_to(_Writer(writer, step), audit, prefix=prefix)
    if hasattr(writer, "flush"):
        writer.flush()


class _Writer:
    def __init__(self, writer: Any, step: int | None, view: str = "") -> None:
        self._writer, self._step, self._view = writer, step, view

    def log_metrics(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(self._view + name, value, self._step)

    def log_params(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            self._writer.add_text(self._view + name, value, self._step)

    log_tags = log_params

    def log_text(self, name: str, content: str) -> None:
        write_whole(Path(self._writer.log_dir) / name, content.encode("utf-8"), private=False)

    @contextmanager
    def open_view(self, name: str, number: int) -> Iterator["_Writer"]:
        del name  # it is the view's subject, which is among the words
        yield _Writer(self._writer, self._step, f"view-{number}/")
