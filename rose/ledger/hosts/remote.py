"""The other end of a gateway: reading a ledger on another host, and asking what it holds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

# gRPC's own lines on stderr repeat what the errors here say.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
from pyarrow import flight

from rose.ledger.layout import LedgerError
from rose.ledger.reading.query import QueryError, Result, python_rows

#: A token, or what gives it at each call.
Secret = str | Callable[[], str] | None
#: What a call may take beyond the work it asks for.
_CALL_S = 30.0
#: What gRPC says where no call was made, and what that means for the gateway at `{url}`.
_NOT_REACHED = (
    ("Connection refused", "no gateway answers at {url}: check the address, and that `rose ledger serve` runs there"),
    ("lookup failed|resolving", "no gateway answers at {url}: the host's name has no address; check how it is written"),
    ("certificate verify failed", "the certificate of {url} is not trusted; name the one to trust with --tls-ca"),
    ("not in peer certificate", "the certificate of {url} is for another host; use a name that is in it"),
    ("wrong version number", "the gateway at {url} does not use TLS; write grpc:// instead of grpc+tls://"),
    ("Socket closed", "{url} ended the connection; if the gateway uses TLS, write grpc+tls:// instead of grpc://"),
)


class GatewayError(LedgerError):
    """The gateway refused something, or there is none; the message says which and what to do."""


class GatewayAwayError(GatewayError):
    """No gateway answers, or it is busy: trying again later may help."""

    exit_code: ClassVar[int] = 1


class TokenFile:
    """The token in a file, as it is at each call: one that was rotated is used from then on."""

    def __init__(self, path: Path) -> None:
        """Raises GatewayError if the file cannot be read, or is empty."""
        self._path = path
        self._token = ""
        if not self():
            raise GatewayError(f"{path} is empty or cannot be read; put the gateway's token into it")

    def __call__(self) -> str:
        """The token. While the file cannot be read, or is empty, it is the last one that was there."""
        with suppress(OSError, UnicodeDecodeError):
            self._token = self._path.read_text(encoding="utf-8").strip() or self._token
        return self._token


class Gateway:
    """A connection to a gateway. Threads may share it; use it as a context manager."""

    def __init__(self, url: str, *, token: Secret = None, tls_ca: Path | str | None = None) -> None:
        """`url` is grpc://host:port, or grpc+tls://host:port; then `tls_ca` may name the certificate to trust, PEM.

        A `token` that is called gives the one to send, at each call.

        Connects at the first call. Raises GatewayError for a URL or a file that cannot be used.
        """
        self.url = url
        scheme, separator, rest = url.partition("://")
        if scheme not in ("grpc", "grpc+tls") or not separator or not rest.rpartition(":")[2].isdecimal():
            raise GatewayError(f"{url!r} is not a gateway's URL; give grpc://HOST:PORT or grpc+tls://HOST:PORT")
        # A gateway that is back is found soon.
        backoff = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 5000)]
        options: dict[str, Any] = {"generic_options": backoff}
        if tls_ca is not None:
            if scheme != "grpc+tls":
                raise GatewayError(f"a certificate to trust was given, and {url} is not encrypted; use grpc+tls://")
            try:
                options["tls_root_certs"] = Path(tls_ca).read_bytes()
            except OSError as error:
                raise GatewayError(f"cannot read {tls_ca}: {error.strerror}") from error
        if token:
            options["middleware"] = [_Bearer(token)]
        self._client = flight.FlightClient(url, **options)

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def info(self, writers: Sequence[str] | None = None) -> dict[str, Any]:
        """What the gateway says of itself; `writers` has what it holds of these, or of each. Raises GatewayError."""
        body = b"" if writers is None else json.dumps({"writers": list(writers)}).encode()
        facts: dict[str, Any] = json.loads(self._act("info", body))
        return facts

    def send_segment(self, path: str, content: bytes) -> dict[str, Any]:
        """Hand over a segment; returns its acknowledgement, once it is on the gateway's disk. Raises GatewayError."""
        acknowledged: dict[str, Any] = json.loads(self._act("segment", path.encode() + b"\n" + content))
        return acknowledged

    def append(self, table: pa.Table) -> None:
        """Append a table of events with an `event_id` each; on the gateway's disk when this returns.

        Retry it when it fails: an event_id counts once. Raises GatewayError.
        """
        with self._errors(GatewayError):
            descriptor = flight.FlightDescriptor.for_path("event")
            writer, reader = self._client.do_put(descriptor, table.schema, _options(_CALL_S))
            with writer:
                writer.write_table(table)
                writer.done_writing()
                reader.read()

    def query(self, text: str, *, limit: int, timeout_s: float, lossless: bool = False) -> pa.Table:
        """The rows of one SELECT; the schema's metadata says whether it was `truncated`.

        Raises QueryError as a local query does, GatewayError if the gateway cannot be asked.
        """
        ticket = {"sql": text, "limit": limit, "timeout_s": timeout_s, "lossless": lossless}
        with self._errors(QueryError):
            return self._client.do_get(flight.Ticket(json.dumps(ticket)), _options(timeout_s + _CALL_S)).read_all()

    def _act(self, kind: str, body: bytes) -> bytes:
        with self._errors(GatewayError):
            (answer,) = self._client.do_action(flight.Action(kind, body), _options(_CALL_S))
            content: bytes = answer.body.to_pybytes()
            return content

    @contextmanager
    def _errors(self, refused: type[LedgerError]) -> Iterator[None]:
        try:
            yield
        except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError) as error:
            raise GatewayError(f"{self.url}: {_message(error)}") from error
        except flight.FlightTimedOutError as error:
            raise GatewayAwayError(
                f"the gateway at {self.url} did not answer in time; try again, and check the address if it never does"
            ) from error
        except flight.FlightUnavailableError as error:
            raise GatewayAwayError(_unavailable(self.url, error)) from error
        except flight.FlightError as error:
            raise refused(_message(error)) from error
        except pa.ArrowNotImplementedError as error:
            raise GatewayError(f"what answers at {self.url} is not a gateway; check the address") from error
        except pa.ArrowException as error:
            # What Python raises for a wrong value or a missing key comes over as Arrow's own: nobody foresaw it there.
            what = str(error).partition(". Detail:")[0]
            raise refused(f"the gateway at {self.url} failed: {what}; see to its ledger and its version") from error


def query(
    url: str,
    text: str,
    *,
    token: str | None = None,
    limit: int = 10_000,
    timeout_s: float = 30.0,
    tls_ca: Path | str | None = None,
) -> Result:
    """Run one SELECT on the ledger behind the gateway at `url`, as `rose.ledger.reading.query.query` does on a folder.

    Raises QueryError if it is refused, fails or takes too long; GatewayError if the gateway cannot be asked.
    """
    with Gateway(url, token=token, tls_ca=tls_ca) as gateway:
        table = gateway.query(text, limit=limit, timeout_s=timeout_s, lossless=True)
    types = [field.metadata[b"type"].decode() for field in table.schema]
    truncated = table.schema.metadata[b"truncated"] == b"true"
    return Result(table.column_names, types, python_rows(table), truncated)


def _options(timeout_s: float) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=timeout_s)


def _message(error: flight.FlightError) -> str:
    """The gateway's own words: the text around them is gRPC's."""
    words: bytes = error.extra_info
    return words.decode() if words else str(error).rpartition("with message: ")[2].partition(". Detail:")[0]


def _unavailable(url: str, error: flight.FlightUnavailableError) -> str:
    """Why the gateway at `url` could not be asked, and what to do."""
    message = _message(error)
    if error.extra_info:
        return f"{url}: {message}"
    for pattern, meaning in _NOT_REACHED:
        if re.search(pattern, message):
            return meaning.format(url=url)
    cause = re.split(r"last error: [A-Z_]+: |\. gRPC client debug", f"{message}. gRPC client debug")[-2]
    return f"the gateway at {url} cannot be asked now; try again ({cause})"


class _Bearer(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    """Sends the token with every call."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        super().__init__()
        self._token = token

    def start_call(self, _info: object) -> _Header:
        token = self._token if isinstance(self._token, str) else self._token()
        return _Header({"authorization": f"Bearer {token}"})


class _Header(flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__()
        self._headers = headers

    def sending_headers(self) -> dict[str, str]:
        return self._headers
