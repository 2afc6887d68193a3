"""Listen for failed units: what the first said, and failures that end an audit at once."""

from dataclasses import dataclass

from epsilometer.engine.events import Event
from epsilometer.errors import InvalidArgument


@dataclass
class Failures:
    """Listens for failed units.

    Attributes:
        ending: An error that says the call is wrong: it ends the audit, raised anew.
        reason: What the first unit said that failed for another reason; empty where none did.
    """

    ending: type[InvalidArgument]
    reason: str = ""

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if event.name != "failed":
            return
        *_, last = str(event.details["error"]).strip().splitlines() or [""]
        kind, _, said = last.partition(": ")
        if kind.rpartition(".")[2] == self.ending.__name__:
            raise InvalidArgument(said)
        self.reason = self.reason or last
