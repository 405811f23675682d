"""The named tokens of a controller. A token is 32 random bytes; the file has only its SHA-256."""

import fcntl
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rose import private_files
from rose.clock import utc_us
from rose.errors import UserError

#: `append`: events of some writers. `read`: status, runs, ledger. `generate`: turns. `publish`: runs, versions.
Scope = Literal["append", "read", "generate", "publish", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_PATTERN = r"^[A-Za-z0-9._*?-]{1,64}$"


class TokenError(UserError):
    """A file of tokens cannot be used, or a command on it failed."""


class UnknownTokenError(UserError):
    """A request's token is not valid. `who` is the name of the token if it expired, else None."""

    def __init__(self, text: str, who: str | None = None) -> None:
        super().__init__(text)
        self.who = who


class Token(BaseModel):
    """The name of a token, and its rights. Times are UTC microseconds since the epoch."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Annotated[str, Field(pattern=_NAME)]
    scopes: tuple[Scope, ...] = ()
    #: Writers that it may append as; `*` and `?` are wildcards.
    writers: tuple[Annotated[str, Field(pattern=_PATTERN)], ...] = ()
    #: The team or run whose runs it may use. An admin may use all.
    team: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    run: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    made_us: int = 0
    until_us: int | None = None

    def may(self, scope: Scope) -> bool:
        return "admin" in self.scopes or scope in self.scopes

    def owns(self, writer: str) -> bool:
        return any(fnmatchcase(writer, pattern) for pattern in self.writers)

    def may_append(self, writer: str) -> bool:
        return "admin" in self.scopes or self.owns(writer)

    @property
    def described(self) -> str:
        scopes = [scope for scope in self.scopes if scope != "append"]
        bounds = [f"{name} {value}" for name in ("team", "run") if (value := getattr(self, name)) is not None]
        return ", ".join([*scopes, *(f"append {pattern}" for pattern in self.writers), *bounds])

    def expired(self, now_us: int) -> bool:
        return self.until_us is not None and now_us >= self.until_us


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    rose_tokens: Literal[2] = 2
    tokens: tuple[Token, ...] = ()


def of_secret(name: str, secret: str, scopes: tuple[Scope, ...], writers: tuple[str, ...] = ()) -> Token:
    return Token(name=name, scopes=scopes, writers=writers, sha256=_sha256(secret))


def find(tokens: tuple[Token, ...], secret: str) -> Token:
    sha256, match = _sha256(secret), None
    for token in tokens:  # Constant time for every file, so that timing reveals nothing.
        if hmac.compare_digest(token.sha256, sha256):
            match = token
    if match is None:
        fault = "unknown" if secret else "missing"
        raise UnknownTokenError(f"the token is {fault}: send a token as `Authorization: Bearer ...`")
    if match.expired(utc_us()):
        until = f"{datetime.fromtimestamp((match.until_us or 0) / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"
        raise UnknownTokenError(f"token {match.name!r} expired at {until}: `rose token create` replaces it", match.name)
    return match


class Watched:
    """The tokens in a file, read again after a change. While the file is damaged, the last valid tokens stay in use."""

    def __init__(self, path: Path, warn: Callable[[str], object]) -> None:
        """Read the tokens. `warn` receives later errors. Raises TokenError for a damaged file."""
        self._path, self._warn = path, warn
        self._mutex = threading.Lock()
        self._mark = self._look()
        self._tokens = read(path)

    @property
    def tokens(self) -> tuple[Token, ...]:
        with self._mutex:
            if (mark := self._look()) != self._mark:
                self._mark = mark
                try:
                    self._tokens = read(self._path)
                except TokenError as error:
                    self._warn(f"{error}; the last valid tokens stay in use")
            return self._tokens

    def _look(self) -> tuple[int, ...] | None:
        with suppress(OSError):
            status = self._path.stat()
            return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        return None


def read(path: Path) -> tuple[Token, ...]:
    try:
        content, fault = path.read_bytes(), private_files.open_to_others(path)
    except OSError as error:
        raise TokenError(f"cannot read token file {path}: {error.strerror}; `rose token create` makes one") from None
    if fault is not None:
        raise TokenError(f"token file {path} {fault}")
    try:
        return _File.model_validate_json(content).tokens
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "its beginning"
        raise TokenError(f"token file {path}: damaged at {where}: {first['msg']}; restore it from a copy") from None


def create(
    path: Path,
    name: str,
    scopes: tuple[Scope, ...],
    writers: tuple[str, ...] = (),
    life_s: float | None = None,
    *,
    team: str | None = None,
    run: str | None = None,
) -> str:
    """Make a token and return its secret, which is stored nowhere. Raises TokenError."""
    scopes = tuple(scope for scope in SCOPES if scope in scopes or (scope == "append" and writers))
    if not scopes or ("append" in scopes and not writers):
        raise TokenError(f"token {name!r} has no scope: give --append, --read, --generate, --publish or --admin")
    secret, now_us = f"rose_{secrets.token_hex(32)}", utc_us()
    until_us = None if life_s is None else now_us + round(life_s * 1e6)
    with _edited(path, missing_ok=True) as tokens:
        if name in tokens and not tokens[name].expired(now_us):
            raise TokenError(f"token {name!r} exists: end it with `rose token revoke {name}`, or choose another name")
        try:
            tokens[name] = Token(
                name=name,
                scopes=scopes,
                writers=writers,
                team=team,
                run=run,
                sha256=_sha256(secret),
                made_us=now_us,
                until_us=until_us,
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise TokenError(
                f"{first['loc'][0]} {first['input']!r} is not valid: give at most 64 letters, digits, '.', '_' and "
                "'-'; names of writers may also have * and ?"
            ) from None
    return secret


def revoke(path: Path, name: str) -> None:
    with _edited(path) as tokens:
        if tokens.pop(name, None) is None:
            raise TokenError(f"unknown token {name!r} in {path}; it has {', '.join(tokens) or 'no tokens'}")


@contextmanager
def _edited(path: Path, *, missing_ok: bool = False) -> Iterator[dict[str, Token]]:
    try:
        with path.with_name(f".{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = {} if missing_ok and not path.exists() else {token.name: token for token in read(path)}
            yield tokens
            private_files.write(path, _File(tokens=tuple(tokens.values())).model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise TokenError(f"cannot change token file {path}: {error.strerror}") from error


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
