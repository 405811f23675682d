"""The Ed25519 key with which a user's writers sign on this host."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError

VARIABLE = "ROSE_LEDGER_KEY"
#: The prime of Curve25519, and the y coordinates of its points of order 1, 2, 4 and 8. A signature by such a point
#: needs no secret: anyone can make one that is right for every message, or for one message in eight.
_P = 2**255 - 19
_Y_8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_SMALL_ORDER = frozenset({0, 1, _P - 1, _Y_8, _P - _Y_8})


@dataclass(frozen=True, slots=True)
class Key:
    public: str
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    def sign(self, message: bytes) -> str:
        return self._private.sign(message).hex()


def load_or_make(path: Path | None = None) -> Key | None:
    """Return the signing key in the file `path` (None: this user's file). If the file is missing, make it with a new
    key, or return None if that fails. Raises LedgerError for a file that cannot be used."""
    path = path or key_path(os.environ)
    key = None if path is None else _load(path)
    if path is not None and key is None:
        with suppress(OSError):
            _make(path)
            key = _load(path)
    return key


def load() -> Key | None:
    path = key_path(os.environ)
    return None if path is None else _load(path)


def key_path(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get(VARIABLE):
        return Path(named).expanduser()
    if home := environment.get("XDG_CONFIG_HOME"):
        return Path(home) / "rose" / "ledger.key"
    try:
        return Path.home() / ".config" / "rose" / "ledger.key"
    except RuntimeError:
        return None


def is_public(text: str) -> bool:
    """Return whether `text` is a safe public key: 64 hexadecimal digits, and no point of small order."""
    if re.fullmatch("[0-9a-f]{64}", text) is None:
        return False
    # The highest bit is the sign of x. Values of p or more are taken modulo p.
    y = int.from_bytes(bytes.fromhex(text), "little") % 2**255
    return y % _P not in _SMALL_ORDER


def check(public: str, message: bytes, signature: str) -> bool:
    if not is_public(public) or re.fullmatch("[0-9a-f]{128}", signature) is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _load(path: Path) -> Key | None:
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LedgerError(
            f"the signing key {path} cannot be read ({error.strerror}): let this user read it, or set {VARIABLE}"
        ) from error
    if mode & 0o077:
        raise LedgerError(f"others may read the signing key {path}; run `chmod 600 {path}`, or name another file")
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):
        private = serialization.load_pem_private_key(content, password=None)
        if isinstance(private, Ed25519PrivateKey):
            return Key(private.public_key().public_bytes_raw().hex(), private)
    raise LedgerError(
        f"the signing key {path} is damaged, or is not an Ed25519 key in PEM without a password; restore it from a "
        f"backup, name another file in {VARIABLE}, or move it away: a new key is then made"
    )


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    layout.create_file(path, content, 0o600)
