"""Commands as they are typed, and what a wrong call is told."""

from click.testing import CliRunner, Result

from epsilometer.cli.main import main


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def told(done: Result) -> str:
    """The one line that says what was wrong with the call."""
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("Error:")] == [lines[-1]]
    return lines[-1]
