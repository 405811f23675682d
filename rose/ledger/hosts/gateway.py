"""The gateway: an Arrow Flight server before a ledger's folder, for hosts that cannot reach the folder itself.

Segments of other hosts come in by the action `segment`, events of programs without a ledger by DoPut, and queries are
answered by DoGet. Whatever is acknowledged is on disk. Nothing that a client sends is unpickled.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from rose.ledger import catalog, layout
from rose.ledger.address import is_loopback
from rose.ledger.hosts import spool
from rose.ledger.hosts.receive import SEGMENT_BYTES_MAX, Receiver
from rose.ledger.layout import LedgerError
from rose.ledger.reading.query import query_arrow
from rose.ledger.writer import LedgerWriter

#: A shorter token could be guessed.
TOKEN_CHARACTERS_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may ask of the gateway."""

    rows: int = 1_000_000
    timeout_s: float = 60.0
    memory_gb: float = 2.0
    queries: int = 2
    #: How long a query waits for its turn before it is told that the gateway is busy.
    wait_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate chain and private key, both PEM."""

    certificate: bytes
    key: bytes


@contextmanager
def serve(
    root: Path | str, host: str, port: int, *, token: str | None, tls: Tls | None = None, limits: Limits | None = None
) -> Iterator[str]:
    """Answer on `host`:`port` (0: a free one) while the block runs; yields the URL. Makes a ledger if there is none.

    Raises LedgerError if `root` cannot be a ledger, if other machines could use it without a token, or if the address
    cannot be had.
    """
    if token is None and not is_loopback(host):
        raise LedgerError(
            f"{host} can be reached from other machines: give a token by --token-file or ROSE_LEDGER_TOKEN, or listen "
            "on 127.0.0.1"
        )
    if token is not None and len(token) < TOKEN_CHARACTERS_MIN:
        raise LedgerError(
            f"the token has {len(token)} characters and needs {TOKEN_CHARACTERS_MIN}; `openssl rand -hex 32` makes one"
        )
    root = layout.create(root)
    # The views stand before the first event does. A damaged file must not keep what is sound from coming in.
    try:
        with suppress(LedgerError):
            catalog.refresh(root)
    except OSError as error:
        raise LedgerError(f"cannot replace the catalog of {root}: {error}; {layout.way_out(error)}") from error
    shown = f"[{host}]" if ":" in host else host
    scheme = "grpc" if tls is None else "grpc+tls"
    options: dict[str, Any] = {"middleware": {"token": _Token(token)}}
    if tls is not None:
        options["tls_certificates"] = [(tls.certificate, tls.key)]
    try:
        server = _Server(root, limits or Limits(), f"{scheme}://{shown}:{port}", **options)
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"cannot listen on {shown}:{port}: {error}; give another address") from error
    try:
        yield f"{scheme}://{shown}:{server.port}"
    finally:
        server.shutdown()
        server.let_go()


class _Token(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets a call through if it brings the token, or if there is none."""

    def __init__(self, token: str | None) -> None:
        super().__init__()
        self._expected = None if token is None else f"Bearer {token}".encode()

    def start_call(self, _info: object, headers: dict[str, list[str | bytes]]) -> None:
        if self._expected is None:
            return
        sent = (headers.get("authorization") or [""])[0]
        if not hmac.compare_digest(sent.encode() if isinstance(sent, str) else sent, self._expected):
            raise flight.FlightUnauthenticatedError(
                f"the token was {'not the right one' if sent else 'not sent'}; "
                "send the gateway's token as `authorization: Bearer <token>`"
            )


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    """Each method is called in a thread of its own."""

    def __init__(self, root: Path, limits: Limits, location: str, **options: Any) -> None:
        self._root = root
        self._limits = limits
        self._receiver = Receiver(root, lambda event: self._own_writer().record(event))
        self._turns = threading.BoundedSemaphore(limits.queries)
        self._mutex = threading.Lock()
        self._writer: LedgerWriter | None = None
        # Last: from here on it answers.
        super().__init__(location, **options)

    def let_go(self) -> None:
        """Give back the names of the writers."""
        self._receiver.close()
        if self._writer is not None:
            self._writer.close()

    def do_action(self, _context: object, action: flight.Action) -> list[bytes]:
        with _errors():
            if action.type == "info":
                held = {writer: asdict(held) for writer, held in self._receiver.held().items()}
                return [json.dumps({"format": layout.FORMAT_VERSION, "writers": held}).encode()]
            if action.type == "segment":
                if len(action.body) > SEGMENT_BYTES_MAX + 1024:
                    raise LedgerError(f"{len(action.body)} bytes; a segment may have {SEGMENT_BYTES_MAX}")
                path, _, content = action.body.to_pybytes().partition(b"\n")
                held_now = self._receiver.receive(path.decode(errors="replace"), content)
                return [json.dumps(asdict(held_now)).encode()]
            raise LedgerError(f"{action.type!r} is no action of this gateway; there are info and segment")

    def list_actions(self, _context: object) -> list[tuple[str, str]]:
        return [("info", "What the gateway holds of each writer, as JSON."), ("segment", "Take in a segment.")]

    def do_put(
        self,
        _context: object,
        _descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with _errors():
            batches, size_bytes = [], 0
            for chunk in reader:
                batches.append(chunk.data)
                size_bytes += chunk.data.nbytes
                if size_bytes > SEGMENT_BYTES_MAX:
                    raise LedgerError(f"more than {SEGMENT_BYTES_MAX} bytes at once; append them in several tables")
            table = pa.Table.from_batches(batches, reader.schema)
            if "event_id" not in table.column_names or table["event_id"].null_count:
                raise LedgerError(
                    "column 'event_id' is missing, or empty in some row; choose one for each event, so that a retried "
                    "one counts once"
                )
            self._own_writer().append(table)
            writer.write(json.dumps({"events": table.num_rows}).encode())

    def do_get(self, _context: object, ticket: flight.Ticket) -> flight.RecordBatchStream:
        with _errors():
            table, truncated = self._query(**_ticket(ticket.ticket))
            return flight.RecordBatchStream(
                table.replace_schema_metadata({"truncated": json.dumps(truncated)}),
            )

    def list_flights(self, _context: object, _criteria: bytes) -> Iterator[flight.FlightInfo]:
        with _errors():
            infos = [self._info(view) for view in catalog.VIEWS]
        yield from infos

    def get_flight_info(self, _context: object, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        with _errors():
            view = descriptor.path[0].decode(errors="replace") if descriptor.path else ""
            if view not in catalog.VIEWS:
                raise LedgerError(f"{view!r} is no view of the ledger; there are {', '.join(catalog.VIEWS)}")
            return self._info(view)

    def _info(self, view: str) -> flight.FlightInfo:
        with catalog.connect(self._root) as connection:
            schema = connection.sql(f"FROM {view} LIMIT 0").to_arrow_table().schema
        ticket = json.dumps({"sql": f"FROM {view}"})
        # Without a location: the rows are to be had where the question was asked.
        return flight.FlightInfo(
            schema, flight.FlightDescriptor.for_path(view), [flight.FlightEndpoint(ticket, [])], -1, -1
        )

    def _query(self, sql: str, limit: int, timeout_s: float, lossless: bool) -> tuple[pa.Table, bool]:
        caps = self._limits
        if not self._turns.acquire(timeout=caps.wait_s):
            raise flight.FlightUnavailableError(
                f"the gateway is busy: {caps.queries} queries are running; ask again in a while"
            )
        try:
            return query_arrow(
                self._root,
                sql,
                limit=min(limit, caps.rows),
                timeout_s=min(timeout_s, caps.timeout_s),
                memory_limit_gb=caps.memory_gb,
                lossless=lossless,
            )
        finally:
            self._turns.release()

    def _own_writer(self) -> LedgerWriter:
        with self._mutex:
            if self._writer is None:
                self._writer = LedgerWriter.open(self._root, spool.GATEWAY_WRITER, spool.GATEWAY_WRITER)
            return self._writer


def _ticket(content: bytes) -> dict[str, Any]:
    """What a ticket asks for. Raises LedgerError."""
    said: dict[str, Any] = {"limit": 10_000, "timeout_s": 30.0, "lossless": False}
    kinds = {"sql": str, "limit": int, "timeout_s": int | float, "lossless": bool}
    try:
        said |= json.loads(content)
    except (ValueError, TypeError) as error:
        raise LedgerError('a ticket is JSON such as {"sql": "from lease", "limit": 100, "timeout_s": 10}') from error
    for name, kind in kinds.items():
        value = said.get(name)
        if not isinstance(value, kind) or (name != "lossless" and isinstance(value, bool)):
            raise LedgerError(f"the ticket's {name} is {value!r}, which does not fit")
    if unknown := set(said) - set(kinds):
        raise LedgerError(f"the ticket has {min(unknown)!r}, which means nothing; it may have {', '.join(kinds)}")
    return said


@contextmanager
def _errors() -> Iterator[None]:
    """What went wrong, in the words of the ledger: the rest of the message is gRPC's."""
    try:
        yield
    except LedgerError as error:
        raise flight.FlightServerError(str(error), str(error).encode()) from error
    except OSError as error:
        said = f"the gateway's disk refuses it: {error.strerror}"
        raise flight.FlightServerError(said, said.encode()) from error
