"""Verify results: recompute one from the shards of its run, and check who signed it."""

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epsilometer import _validate
from epsilometer._dispatch import read_call
from epsilometer._extras import needs
from epsilometer._files import read_plain
from epsilometer.core.audit import Audit
from epsilometer.core.chain import PLAN, RESULT, check_chain
from epsilometer.core.renderers import render
from epsilometer.errors import EpsilometerError, UnreadableFile

SIGNATURE = ".minisig"
_LARGEST = 64 * 2**10  # bytes of a key or a signature
_KEY, _SIGNATURE = 42, 74  # bytes: two of the algorithm, eight of the key's name, and the rest
_COMMENT = b"trusted comment: "


class NotVerified(EpsilometerError):
    """A result is not what its run computed, or not signed by the expected key."""


def verify(directory: str | Path, subject: Any = None, *, trust: bool = False) -> Audit:
    """Recompute the result of a run from its shards, and compare it byte for byte.

    Guarantee: the returned audit follows from the units in the directory, by this version of
        epsilometer. No unit is computed again, and nothing is written.
    Assumption: the units are those that the code returned; only a second run in another directory,
        or a signature, shows that.

    Args:
        directory: Directory of the run.
        subject: What was audited, where data or functions were supplied from Python.
        trust: Import functions that the plan names.

    Raises:
        NotVerified: The result differs.
        UnreadableFile: A file of the run was changed, or there is no run.

    Example:
        >>> import tempfile, epsilometer as em
        >>> from epsilometer.verification import verify
        >>> def play(runs, rng):
        ...     return em.Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))
        >>> subject = em.Runs(play, runs=200)
        >>> with tempfile.TemporaryDirectory() as run:
        ...     found = em.audit(subject, 1.0, delta=1e-5, out=run, engine=em.InProcess())
        ...     verify(run, subject) == found
        True
    """
    home = Path(directory)
    for name in (PLAN, RESULT):
        if not (home / name).exists():
            raise UnreadableFile(
                f"Expected a finished run in {str(home)!r}, found no {name}: nothing can be "
                "recomputed. Give the directory of a run."
            )
    check_chain(home)
    found = read_call(home, trust=trust, subject=subject).recompute_from(home)
    stated, computed = read_plain(home / RESULT), render(found, ".json")
    if stated != computed:
        raise NotVerified(
            f"Expected the result that the units of {str(home)!r} give; {RESULT} has another: "
            f"{_describe_difference(stated, computed)}. Its units give {found.verdict!r}."
        )
    return found


def check_signature(file: str | Path, key: str | Path) -> str:
    """Check the ``minisign`` signature of a file, and return its trusted comment.

    Guarantee: the holder of the secret key signed these bytes.
    Assumption: the public key belongs to the expected signer.

    Args:
        file: The signed file; the signature is next to it, named ``FILE.minisig``.
        key: File of the public key, or the key itself, which begins with RW.

    Raises:
        NotVerified: It was signed by another key, or changed afterwards.
        UnreadableFile: The signature or the key is missing.
        MissingExtra: The package ``cryptography`` is not installed.
    """
    with needs("cryptography", extra="signing"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    path = Path(file)
    public, signature = _read_key(key), _read_signature(Path(f"{path}{SIGNATURE}"))
    if public.name != signature.name:
        raise NotVerified(
            f"Expected {path.name!r} to be signed by the key {public.name.hex()}, it is signed by "
            f"{signature.name.hex()}."
        )
    data = read_plain(path)
    signed = hashlib.blake2b(data).digest() if signature.hashed else data
    try:
        verifier = Ed25519PublicKey.from_public_bytes(public.value)
        verifier.verify(signature.value, signed)
        verifier.verify(signature.of_comment, signature.value + signature.comment)
    except (InvalidSignature, ValueError) as error:
        raise NotVerified(
            f"Expected {path.name!r} as the key {public.name.hex()} signed it: it was changed "
            "since, or its signature is forged."
        ) from error
    return signature.comment.decode("utf-8", "replace")


@dataclass(frozen=True)
class _Key:
    name: bytes
    value: bytes


@dataclass(frozen=True)
class _Signature:
    """The signature of a file's bytes or of their BLAKE2b hash, and that of a comment."""

    hashed: bool
    name: bytes
    value: bytes
    comment: bytes
    of_comment: bytes


def _read_key(key: str | Path) -> _Key:
    text = str(key)
    if not text.strip():
        raise UnreadableFile("Expected a public key of minisign, or its file, got nothing.")
    if isinstance(key, Path) or not text.startswith("RW"):
        text = _read(Path(key), "the public key").decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line and not line.startswith("untrusted")]
    data = _decode(lines[0].encode() if lines else b"", _KEY)
    if data is None or data[:2] != b"Ed":
        raise UnreadableFile(
            f"Expected a public key of minisign, which begins with RW, got {_validate.short(text)}."
        )
    return _Key(data[2:10], data[10:])


def _read_signature(path: Path) -> _Signature:
    lines = _read(path, "the signature").splitlines()
    whole = len(lines) == 4 and lines[2].startswith(_COMMENT)
    data = _decode(lines[1], _SIGNATURE) if whole else None
    last = _decode(lines[3], 64) if whole else None
    if data is None or last is None or data[:2] not in (b"Ed", b"ED"):
        raise UnreadableFile(f"Expected a signature of minisign in {str(path)!r}, got other text.")
    comment = lines[2].removeprefix(_COMMENT)
    return _Signature(data[:2] == b"ED", data[2:10], data[10:], comment, last)


def _read(path: Path, what: str) -> bytes:
    try:
        return read_plain(path, largest=_LARGEST)
    except OSError as error:
        raise UnreadableFile(
            f"Expected {what} in {str(path)!r}, found none to read: {error.strerror}."
        ) from error


def _decode(text: bytes, length: int) -> bytes | None:
    try:
        data = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == length else None


def _describe_difference(stated: bytes, computed: bytes) -> str:
    """Describe the first field of the result that differs."""
    try:
        old, new = json.loads(stated), json.loads(computed)
        for name in {**new, **old}:
            if old.get(name) != new.get(name):
                was, now = (_validate.short(each.get(name)) for each in (old, new))
                return f"{name} is {was}, and {now} recomputed"
    except (ValueError, AttributeError, RecursionError):
        pass
    return "it is written otherwise"
