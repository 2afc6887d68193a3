"""Call commands one after the other in this process: what a pseudo-terminal gets to see.

The first argument is a JSON file with a list of commands.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

from epsilometer.cli.main import main

END = "=== end of a command ==="  # printed by this program alone


def run(commands: list[list[str]]) -> None:
    """Call each command, whatever its exit code."""
    for command in commands:
        with contextlib.suppress(SystemExit):
            main(command)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, f"\n{END}\n".encode())


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text("utf-8")))
