"""``epsilometer ui``."""

import secrets
from pathlib import Path

import click

from epsilometer._extras import needs
from epsilometer.cli.options import option
from epsilometer.cli.output import say
from epsilometer.errors import InvalidArgument


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="any that is free",
    help="Listen on this port of 127.0.0.1.",
)
def ui(folder: Path, port: int) -> None:
    """Watch the runs in FOLDER live in a browser.

    Reads run directories and changes nothing. Listens on 127.0.0.1 only, and answers only requests
    with the token in the printed address.

    Example: epsilometer ui runs
    """
    import socket

    if not folder.is_dir():
        raise InvalidArgument(f"Expected a folder of runs, found none at {str(folder)!r}.")

    from epsilometer.cli.ui_app import make_app

    with needs("uvicorn", extra="ui"):
        import uvicorn

    token = secrets.token_urlsafe(24)
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        say(f"Open: http://127.0.0.1:{bound.getsockname()[1]}/?token={token}")
        say("Stop with Ctrl+C.")
        config = uvicorn.Config(make_app(folder, token), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[bound])
