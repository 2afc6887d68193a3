"""Check that the files of a run belong together: plan → shards → result.

``chain.json`` holds the SHA-256 of the plan and of the result, and the checksums of all shards,
under a code that only someone who has the secret of the run can compute. It reveals files that
were edited or damaged. Someone who may read the whole directory can forge all of it: only a
signature, or recomputing the result from the shards, protects against that.
"""

import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Any

from epsilometer._files import LARGEST_TEXT, Folder
from epsilometer.errors import UnreadableFile

CHAIN, SECRET, PLAN, RESULT, SHARDS = "chain.json", "secret", "plan.json", "result.json", "shards"
_LENGTH = 32  # bytes of a secret
_LARGEST = 2**20  # bytes of a chain
_NAMED = 5000  # shards that are named; more are known by one sum
_SUM = 64  # letters of a SHA-256, with which every shard begins


class BrokenChain(UnreadableFile):
    """A file of a run is not the one that the run wrote.

    Attributes:
        what: Which file, and how it differs, in words.
    """

    def __init__(self, message: str, what: str) -> None:
        """Store the message, and the part of it that names the file."""
        super().__init__(message)
        self.what = what


def make_secret(home: Folder, name: str = SECRET) -> bytes:
    """Return the secret of a run, or of another name; create it if it does not exist."""
    if home.look(name) is None:
        home.write(name, secrets.token_hex(_LENGTH).encode("ascii") + b"\n")
    return read_secret(home, name)


def read_secret(home: Folder, name: str = SECRET) -> bytes:
    """Return the secret of a run, or of another name.

    Raises:
        BrokenChain: There is no valid secret.
    """
    try:
        text = home.read(name, largest=2 * _LENGTH + 1).decode("ascii").strip()
        if len(text) == 2 * _LENGTH:
            return bytes.fromhex(text)
    except (OSError, ValueError, UnreadableFile):
        pass
    raise BrokenChain(
        f"Expected a secret in {str(home.path / name)!r}, found none. Without it, data and files "
        "cannot be compared. Restore it, or start a new run.",
        f"{name} is lost",
    )


def write_chain(home: Folder, result: bytes) -> None:
    """Write the checksums of the plan and the shards, and of the result to be written."""
    links = _read_links(home, result)
    plain = {**links, "seal": _seal(read_secret(home), links)}
    home.write(CHAIN, json.dumps(plain, indent=2).encode("ascii") + b"\n")


def check_chain(directory: Path) -> None:
    """Refuse a run whose plan, shards or result is not what the run wrote.

    Guarantee: a file that was changed, lost or added since the result was written is named. A
        folder that is not a run, such as one with only a result, passes.
    Assumption: no one forged the chain itself, which takes read access to the whole directory.

    Raises:
        BrokenChain: A file was changed; the message names it and says what to do.
    """
    try:
        with Folder.hold(directory) as home:
            if home.look(PLAN) is not None and home.look(RESULT) is not None:
                _check(home)
    except OSError as error:
        raise UnreadableFile(
            f"Expected to be able to read {str(directory)!r}: {error.strerror}."
        ) from error


def describe_break(directory: Path) -> str:
    """Say which file of a run was changed since its result was written; empty if none was."""
    try:
        check_chain(directory)
    except BrokenChain as error:
        return error.what
    except UnreadableFile as error:
        return str(error)
    return ""


def _check(home: Folder) -> None:
    stated = _read_stated(home)
    found = _read_links(home, home.read(RESULT, largest=LARGEST_TEXT))
    if stated == found:
        return
    if stated.get("plan") != found["plan"]:
        raise _break(home, f"{PLAN} was changed")
    if stated.get("shards") != found["shards"]:
        raise _break(home, _name_shard(stated.get("named"), found["named"]))
    raise _break(home, f"{RESULT} was changed")


def _read_stated(home: Folder) -> dict[str, Any]:
    secret = read_secret(home)
    try:
        plain = json.loads(home.read(CHAIN, largest=_LARGEST))
        stated = str(plain.pop("seal"))
        if hmac.compare_digest(stated.encode("utf-8", "replace"), _seal(secret, plain).encode()):
            return dict(plain)
    except FileNotFoundError as error:
        raise _break(home, f"{CHAIN} is lost") from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _break(home, f"{CHAIN} was changed") from error
    raise _break(home, f"{CHAIN} was changed")


def _read_links(home: Folder, result: bytes) -> dict[str, Any]:
    shards: dict[str, str] = {}
    if home.look(SHARDS) is not None:
        with home.hold_inner(SHARDS) as inner:
            for name in inner.names():
                if name.endswith(".shard"):
                    with inner.open(name) as file:
                        shards[name] = file.read(_SUM).decode("ascii", "replace")
    lines = [f"{name} {checksum}\n" for name, checksum in shards.items()]
    return {
        "format": 1,
        "plan": hashlib.sha256(home.read(PLAN, largest=LARGEST_TEXT)).hexdigest(),
        "shards": hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest(),
        "named": shards if len(shards) <= _NAMED else {},
        "result": hashlib.sha256(result).hexdigest(),
    }


def _name_shard(before: Any, now: dict[str, str]) -> str:
    """Say which shard differs, if shards are named."""
    known = before if isinstance(before, dict) else {}
    every = sorted({**known, **now})
    name = next((each for each in every if known.get(each) != now.get(each)), None)
    if name is None:  # too many to be named
        return f"{SHARDS}/ was changed"
    how = "is new" if name not in known else "was changed" if name in now else "is lost"
    return f"{SHARDS}/{name} {how}"


def _seal(secret: bytes, links: dict[str, Any]) -> str:
    text = json.dumps(links, sort_keys=True, separators=(",", ":"))
    return hmac.digest(secret, text.encode("utf-8"), "sha256").hex()


def _break(home: Folder, what: str) -> BrokenChain:
    return BrokenChain(
        f"Expected the run in {str(home.path)!r} as it was written: {what} since. "
        f"Make its result again from what is whole: epsilometer runs resume {home.path}",
        f"{what} since",
    )
