"""An anchor: a command of the user's that has others attest to a receipt, such as a time stamping authority."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path
from typing import ClassVar

from rose.ledger import layout
from rose.ledger.layout import LedgerError

VARIABLE = "ROSE_RECEIPT_SHA256"


class AnchorError(LedgerError):
    """The command failed; the receipt stands, without an anchor."""

    exit_code: ClassVar[int] = 1


def words_of(command: str) -> list[str]:
    """The words of a command. Raises LedgerError for what is none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise LedgerError(f"--anchor {command!r} is not a command: {error}") from error
    if not words:
        raise LedgerError("--anchor is empty; name the command that anchors a receipt")
    return words


def anchor_of(path: Path) -> Path:
    """Where the anchor of a receipt is kept: beside it."""
    return path.with_name(f"{path.name}.anchor")


def keep(path: Path, content: bytes, *, force: bool = False) -> None:
    """Write a receipt to a new file, or with `force` in the place of another one, whose anchor goes first.

    So an anchor that lies beside a receipt is always of this one. Raises LedgerError if there is such a file, or if it
    cannot be written.
    """
    old = anchor_of(path)
    for there in (path, old):
        if not force and (there.exists() or there.is_symlink()):
            raise LedgerError(f"{there} exists; name another file by --out, or replace it and its anchor with --force")
    try:
        old.unlink(missing_ok=True)
        layout.write_file(path, content)
    except OSError as error:
        raise LedgerError(f"cannot write {path}: {error.strerror}; {layout.way_out(error)}") from error


def anchor(path: Path, command: str) -> Path:
    """Run `command` with the path of a receipt as its last argument; what it prints is kept as `<receipt>.anchor`.

    `ROSE_RECEIPT_SHA256` has the SHA-256 of the receipt's file. No shell is between. Raises LedgerError for a command
    that is none, AnchorError if it fails, prints nothing, or if what it prints cannot be written.
    """
    words = words_of(command)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        # Its own messages go to stderr as they come.
        done = subprocess.run(
            [*words, str(path)], stdout=subprocess.PIPE, env={**os.environ, VARIABLE: sha256}, check=False
        )
    except OSError as error:
        raise AnchorError(f"the anchor command {words[0]!r} cannot be run: {error.strerror}. {path} is kept") from error
    if done.returncode:
        raise AnchorError(
            f"the anchor command {command!r} failed with exit code {done.returncode}. {path} is kept, without an anchor"
        )
    if not done.stdout:
        raise AnchorError(f"the anchor command {command!r} printed nothing. {path} is kept, without an anchor")
    target = anchor_of(path)
    try:
        layout.write_file(target, done.stdout)
    except OSError as error:
        raise AnchorError(f"cannot write {target}: {error.strerror}; {layout.way_out(error)}") from error
    return target
