"""Who may do what at a gateway: each call is admitted by its token, and what it reads, or was refused, is logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

from pyarrow import flight

from rose.events import Access
from rose.ledger import layout
from rose.ledger.access import Reading, statement
from rose.ledger.hosts.access_log import AccessLog
from rose.ledger.hosts.tokens import Token, TokenError

#: Who calls a gateway that asks for no token, and who calls with one that it does not know.
NO_TOKEN = "(no token)"
UNKNOWN_TOKEN = "(unknown token)"
#: Under which the token of a call is found again.
MIDDLEWARE = "token"

Read = Literal["query", "info"]
Scope = Literal["read", "append", "admin"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the name for the log, what it may do, and from where."""

    who: str
    token: Token
    peer: str


class Bearer(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps the token of a call for `Admission`, which knows where the call came from. No web page may call: gRPC gives
    no Host header to compare its Origin with."""

    def start_call(self, _info: object, headers: dict[str, list[str | bytes]]) -> _Sent:
        if "origin" in headers:
            raise flight.FlightUnauthorizedError("a web page may ask nothing here")
        sent = (headers.get("authorization") or [""])[0]
        text = sent.decode(errors="surrogateescape") if isinstance(sent, bytes) else sent
        scheme, _, secret = text.partition(" ")
        return _Sent(secret if scheme == "Bearer" else text)


class _Sent(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, secret: str) -> None:
        super().__init__()
        self.secret = secret


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits the calls of a gateway. `find` gives the token of a secret; None: anyone may do everything."""

    log: AccessLog
    find: Callable[[str], Token] | None
    _anyone: Token = field(default_factory=lambda: Token(name="anyone", append=("*",), admin=True))

    def caller(self, context: flight.ServerCallContext) -> Caller:
        """Who calls. Raises FlightUnauthenticatedError, and counts it, if the token is not valid."""
        peer = unquote(context.peer()).partition(":")[2]
        if self.find is None:
            return Caller(NO_TOKEN, self._anyone, peer)
        try:
            token = self.find(context.get_middleware(MIDDLEWARE).secret)
        except TokenError as error:
            who = error.who or UNKNOWN_TOKEN
            self.log.count(Access(who=who, peer=peer, action="token_denied", outcome="refused"))
            raise flight.FlightUnauthenticatedError(str(error), str(error).encode()) from error
        return Caller(token.name, token, peer)

    def appending(self, context: flight.ServerCallContext, writer: str) -> Caller:
        """Who appends as `writer`, which needs the scope for it. Raises FlightUnauthorizedError, LedgerError."""
        caller = self.caller(context)
        layout.check_writer_name(writer)
        if not caller.token.may_append(writer):
            raise self.denied(caller, "append", f"append as {writer!r}", f"--append {writer}", writer)
        return caller

    @contextmanager
    def reading(self, context: flight.ServerCallContext, action: Read, asked: str | None = None) -> Iterator[Reading]:
        """The block reads for a caller with scope `read`; what it gives may go out once this ended well.

        Its event is on disk then. Raises LedgerError if the disk refuses that, FlightUnauthorizedError without the
        scope, and what the block raises.
        """
        caller = self.caller(context)
        if not caller.token.may_read:
            raise self.denied(caller, "read", "read", "--read", asked)
        self.log.check()
        reading, began_ns = Reading(), time.monotonic_ns()

        def entry(outcome: Literal["ok", "refused", "failed", "timeout"]) -> Access:
            took: dict[str, Any] = {"result_rows": reading.rows, "duration_ns": time.monotonic_ns() - began_ns}
            return Access(who=caller.who, peer=caller.peer, action=action, outcome=outcome, **took, **statement(asked))

        try:
            yield reading
        except flight.FlightUnavailableError:
            # Busy: nothing was looked at, and whoever tries on and on must not fill the disk.
            self.log.count(entry("refused"))
            raise
        except Exception as error:
            self.log.write(entry(getattr(error, "outcome", "failed")))
            raise
        (self.log.write_or_count if action == "info" else self.log.write)(entry("ok"))

    def denied(
        self, caller: Caller, scope: Scope, act: str, option: str, asked: str | None = None
    ) -> flight.FlightUnauthorizedError:
        """The error that says what is missing and how to get it; counted."""
        denials: dict[Scope, Any] = {"read": "read_denied", "append": "append_denied", "admin": "admin_denied"}
        self.log.count(
            Access(who=caller.who, peer=caller.peer, action=denials[scope], outcome="refused", **statement(asked))
        )
        name = caller.token.name
        text = (
            f"token {name!r} may not {act}: it lacks the scope {scope!r} for it, and has {caller.token.scopes}. On the "
            f"gateway's host `rose ledger token grant {name} {option} --tokens FILE` gives it"
        )
        return flight.FlightUnauthorizedError(text, text.encode())
