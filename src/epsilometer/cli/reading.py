"""What commands share that read results."""

from pathlib import Path

from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.core.audit import Result
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.serialisation import from_json


def read_result(path: Path) -> Result:
    """The result in a JSON file, or in the directory of a run."""
    file = path / "result.json" if path.is_dir() else path
    try:
        result = from_json(file.read_text("utf-8"))
    except FileNotFoundError as error:
        advice = f" Finish the run: epsilometer resume {path}" if path.is_dir() else ""
        raise UnreadableFile(f"Expected a result in {str(file)!r}, found none.{advice}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"Could not read {str(file)!r}: {error}.") from error
    except InvalidArgument as error:
        raise UnreadableFile(f"{file}: {error}") from error
    if isinstance(result, EpsilonEstimate):
        raise UnreadableFile(f"Expected an audit or a bound in {str(file)!r}, got an estimate.")
    return result
