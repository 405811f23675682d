"""Named tokens of a gateway: who may append as which writers, who may read, who may do everything, and until when.

They lie in a file outside the ledger, readable by its owner alone, replaced whole. It holds no token, only hashes:
SHA-256 once over each, since a token is 32 random bytes, which nobody finds by trying. The slow hashes are for
passwords, and would cost every call what they cost a thief.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rose import secret_file
from rose.clock import utc_us
from rose.ledger import layout
from rose.ledger.layout import LedgerError

TOKEN_BYTES = 32
#: The token of a gateway that knows one only, which may do everything.
ONLY = "token"
#: How long it is still known of a key that it ended, and why.
_REMEMBERED_US = 90 * 86_400_000_000

Name = Annotated[str, Field(pattern=f"^(?:{layout.WRITER_NAME.pattern})$")]
#: Names of writers, `*` and `?` standing for any characters and for one.
Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9._*?-]{1,64}$")]


class TokenError(LedgerError):
    """A call brought no token that is valid now. `who` is the name of the one that was, or None."""

    def __init__(self, text: str, who: str | None = None) -> None:
        super().__init__(text)
        self.who = who


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Key(_Kept):
    """One secret of a token. Times are UTC microseconds since the epoch."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    made_us: int
    #: From then on it opens nothing; None: it never ends.
    until_us: int | None = None
    ended_by: Literal["expiry", "rotation", "revocation"] = "expiry"

    def valid(self, now_us: int) -> bool:
        """Whether it opens anything."""
        return self.until_us is None or now_us < self.until_us


class Token(_Kept):
    """A name, what it may do, and the secrets that open it: during a rotation two."""

    name: Name
    append: tuple[Pattern, ...] = ()
    read: bool = False
    admin: bool = False
    #: For how long each key is made; None: without an end.
    life_us: int | None = None
    #: Since when it opens nothing until it is made anew, whatever became of its keys; UTC microseconds.
    revoked_us: int | None = None
    keys: tuple[Key, ...] = ()

    def may_append(self, writer: str) -> bool:
        """Whether it may append as `writer`."""
        return self.admin or self.owns(writer)

    def owns(self, writer: str) -> bool:
        """Whether this is one of the writers that it is there to append as; that it may do everything is not enough."""
        return any(fnmatchcase(writer, pattern) for pattern in self.append)

    @property
    def may_read(self) -> bool:
        """Whether it may read everything."""
        return self.admin or self.read

    @property
    def scopes(self) -> str:
        """What it may do, in words."""
        named = ["admin"] * self.admin + ["read"] * self.read + [f"append {pattern}" for pattern in self.append]
        return ", ".join(named)

    def state(self, now_us: int) -> str:
        """Whether it is valid, in words."""
        if self.revoked_us is not None:
            return "revoked"
        valid = [key for key in self.keys if key.valid(now_us)]
        if not valid:
            # Older versions wrote it down on the keys alone.
            return "revoked" if any(key.ended_by == "revocation" for key in self.keys[-1:]) else "expired"
        return "valid" if len(valid) == 1 else f"rotating until {_text(min(key.until_us or 0 for key in valid[:-1]))}"


class _File(_Kept):
    rose_tokens: Literal[1] = 1
    tokens: tuple[Token, ...] = ()

    @model_validator(mode="after")
    def _unique(self) -> Self:
        for what in (
            [token.name for token in self.tokens],
            [key.sha256 for token in self.tokens for key in token.keys],
        ):
            if len(what) != len(set(what)):
                raise ValueError(f"{max(what, key=what.count)!r} appears twice")
        return self


def everything(secret: str) -> tuple[Token, ...]:
    """The one token of a gateway that was given `secret`, and no file."""
    return (Token(name=ONLY, append=("*",), read=True, admin=True, keys=(_key(secret, None),)),)


def find(tokens: tuple[Token, ...], secret: str) -> Token:
    """The token that `secret` opens now. Raises TokenError, which tells the holder of a key that ended so, and when."""
    sha256, now_us = _sha256(secret), utc_us()
    token, key = None, None
    # All of them, and each in the same time: how long it takes says nothing of what is in the file.
    for candidate in tokens:
        for known in candidate.keys:
            if hmac.compare_digest(known.sha256, sha256):
                token, key = candidate, known
    if token is None or key is None:
        raise TokenError(
            f"the token was {'not the right one' if secret else 'not sent'}; "
            "send one that the gateway knows as `authorization: Bearer <token>`"
        )
    if not key.valid(now_us):
        # Only who has the token itself hears of it.
        ended = {"expiry": "expired", "rotation": "was replaced by a new one", "revocation": "was revoked"}
        raise TokenError(
            f"the token was not valid any more: {token.name!r} {ended[key.ended_by]} at {_text(key.until_us or 0)}. "
            f"On the gateway's host `{_way_out(token, key, now_us)}` makes a new one: put it where this one was read",
            token.name,
        )
    return token


class Watched:
    """The tokens in a file, read again when it changed; what cannot be read leaves those that were read last."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """`warn` hears of a file that became unreadable, and that it is well again. Raises LedgerError if it is now."""
        self._path = path
        self._warn = warn
        self._mutex = threading.Lock()
        self._mark = self._look()
        self._tokens = read(path)
        self._damaged = False

    def find(self, secret: str) -> Token:
        """As `find`."""
        with self._mutex:
            if (mark := self._look()) != self._mark:
                self._mark = mark
                try:
                    self._tokens = read(self._path)
                    if self._damaged:
                        self._warn(f"{self._path} can be read again")
                    self._damaged = False
                except LedgerError as error:
                    self._damaged = True
                    self._warn(f"{error}. Until then the tokens that were read last are valid")
            tokens = self._tokens
        return find(tokens, secret)

    def _look(self) -> tuple[int, ...] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read(path: Path) -> tuple[Token, ...]:
    """The tokens in the file at `path`. Raises LedgerError if it is damaged, or lies open to others."""
    path = _outside(path)
    try:
        content = path.read_bytes()
        others = secret_file.open_to_others(path)
    except OSError as error:
        raise LedgerError(
            f"--tokens {path}: {error.strerror}; `rose ledger token create NAME --tokens FILE` makes one"
        ) from error
    if others is not None:
        raise LedgerError(f"--tokens {path}: {others}")
    try:
        return _File.model_validate_json(content).tokens
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LedgerError(
            f"--tokens {path}: damaged{f' at {where}' if where else ''}: {first['msg']}; put it back from a copy"
        ) from error


def create(
    path: Path,
    name: str,
    *,
    append: tuple[str, ...] = (),
    read: bool = False,
    admin: bool = False,
    life_s: float | None = None,
) -> str:
    """Make a token and return it: nobody can read it again. `life_s`: seconds until it expires.

    A name whose keys have all ended may be used again. Raises LedgerError.
    """
    if not (append or read or admin):
        raise LedgerError(f"token {name!r} could do nothing; give it --append PATTERN, --read or --admin")
    life_us = None if life_s is None else round(life_s * 1e6)
    with _edited(path, missing_ok=True) as tokens:
        old = tokens.get(name)
        if old is not None and any(key.valid(utc_us()) for key in old.keys):
            raise LedgerError(
                f"token {name!r} is there; `rose ledger token grant` gives it scopes, `rotate` another secret"
            )
        secret = _secret()
        keys = (*(old.keys if old else ()), _key(secret, life_us))
        tokens[name] = _made(name=name, append=append, read=read, admin=admin, life_us=life_us, keys=keys)
    return secret


def grant(path: Path, name: str, *, append: tuple[str, ...] = (), read: bool = False, admin: bool = False) -> Token:
    """Let a token do this as well, without another secret. Raises LedgerError."""
    with _edited(path) as tokens:
        old = _named(tokens, name)
        patterns = (*old.append, *(pattern for pattern in append if pattern not in old.append))
        scopes: dict[str, object] = {"append": patterns, "read": old.read or read, "admin": old.admin or admin}
        tokens[name] = _made(name=name, **scopes, life_us=old.life_us, revoked_us=old.revoked_us, keys=old.keys)
        return tokens[name]


def rotate(path: Path, name: str, grace_s: float) -> str:
    """Make another secret for a token and return it; those before it open it for `grace_s` seconds more.

    Raises LedgerError if there is no such token, or if it was revoked.
    """
    with _edited(path) as tokens:
        old, now_us = _named(tokens, name), utc_us()
        if old.state(now_us) == "revoked":
            raise LedgerError(f"token {name!r} was revoked; `rose ledger token create {name}` makes it anew")
        secret = _secret()
        ended = _ended(old, now_us + round(grace_s * 1e6), "rotation")
        tokens[name] = old.model_copy(update={"keys": (*ended, _key(secret, old.life_us))})
    return secret


def revoke(path: Path, name: str) -> None:
    """End a token now. Raises LedgerError if there is none of this name."""
    with _edited(path) as tokens:
        old = _named(tokens, name)
        now_us = utc_us()
        tokens[name] = old.model_copy(update={"revoked_us": now_us, "keys": _ended(old, now_us, "revocation")})


def _ended(token: Token, until_us: int, by: Literal["rotation", "revocation"]) -> tuple[Key, ...]:
    return tuple(
        key.model_copy(update={"until_us": until_us, "ended_by": by})
        if key.until_us is None or key.until_us > until_us
        else key
        for key in token.keys
    )


def _made(**fields: object) -> Token:
    """A token whose fields come from a command. Raises LedgerError."""
    try:
        return Token.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise LedgerError(
            f"{first['loc'][0]} {first['input']!r} cannot be used: letters, digits, '.', '_' and '-', at most 64"
            f"{', and * and ? in patterns' if first['loc'][0] == 'append' else ''}"
        ) from error


def _named(tokens: dict[str, Token], name: str) -> Token:
    if name not in tokens:
        raise LedgerError(f"there is no token {name!r}; there are {', '.join(tokens) or 'none'}")
    return tokens[name]


@contextmanager
def _edited(path: Path, *, missing_ok: bool = False) -> Iterator[dict[str, Token]]:
    """The tokens by name, written back whole when the block ends well. Raises LedgerError."""
    path = _outside(path)
    try:
        with layout.locked(path.with_name(f".{path.name}.lock")):
            tokens = {} if missing_ok and not path.exists() else {token.name: token for token in read(path)}
            yield tokens
            oldest_us = utc_us() - _REMEMBERED_US
            kept = tuple(
                token.model_copy(update={"keys": tuple(key for key in token.keys if key.valid(oldest_us))})
                for token in tokens.values()
            )
            _write(path, _File(tokens=kept).model_dump_json(indent=2).encode() + b"\n")
    except OSError as error:
        raise LedgerError(f"--tokens {path}: {error.strerror}; {layout.way_out(error)}") from error


def _write(path: Path, content: bytes) -> None:
    # Under the lock, so the name is free; nobody else may read it at any moment.
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    layout.replace_file(temporary, path)


def _outside(path: Path) -> Path:
    """The absolute path of a file of tokens, which no copy of a ledger may carry along."""
    path = path.expanduser().resolve()
    for folder in path.parents:
        if (folder / layout.MARKER).exists():
            raise LedgerError(
                f"--tokens {path}: lies in the ledger {folder}, and with each copy of it; keep it outside"
            )
    return path


def _way_out(token: Token, key: Key, now_us: int) -> str:
    gone = token.state(now_us) == "revoked"
    return f"rose ledger token {'create' if gone else 'rotate'} {token.name} --tokens FILE"


def _secret() -> str:
    # The prefix is for people, and for programs that look for secrets where none should be.
    return f"rose_{secrets.token_hex(TOKEN_BYTES)}"


def _key(secret: str, life_us: int | None) -> Key:
    now_us = utc_us()
    return Key(sha256=_sha256(secret), made_us=now_us, until_us=None if life_us is None else now_us + life_us)


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def _text(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
