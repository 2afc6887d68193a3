"""Listen for failed units: what the first said, and failures that end an audit at once."""

from dataclasses import dataclass

from epsilometer.core.printing import name_error
from epsilometer.engine.events import Event
from epsilometer.errors import SHOW_ERRORS, InvalidArgument, shows_errors


@dataclass
class Failures:
    """Listens for failed units.

    Attributes:
        ending: An error that says the call is wrong: it ends the audit, raised anew.
        reason: What the first unit said that failed for another reason; empty where none did.
        kind: Which exception that was; its text may hold data, this does not.
    """

    ending: type[InvalidArgument]
    reason: str = ""
    kind: str = ""

    def describe(self) -> str:
        """Say why the first unit failed: its text, which may hold data, only where asked for."""
        if shows_errors():
            return f"one said: {self.reason}"
        return (
            f"one raised {self.kind}. What it said is in the run's directory (out=), and is shown "
            f"with {SHOW_ERRORS}=1."
        )

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if event.name != "failed":
            return
        error = str(event.details["error"])
        *_, last = error.strip().splitlines() or [""]
        kind, _, said = last.partition(": ")
        if kind.rpartition(".")[2] == self.ending.__name__:
            if self.ending is InvalidArgument:  # also users' code may have raised it
                raise InvalidArgument("A unit says that the call is wrong.", withheld=said)
            raise InvalidArgument(said)
        self.reason, self.kind = self.reason or last, self.kind or name_error(error)
