"""The gateway: an Arrow Flight server before a ledger's folder, for hosts that cannot reach the folder itself.

Segments of other hosts come in by the action `segment`, events of programs without a ledger by DoPut, and queries are
answered by DoGet. Whatever is acknowledged is on disk. Nothing that a client sends is unpickled.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from rose.events import Access, Ledger
from rose.ledger import catalog, layout
from rose.ledger.address import check_guarded
from rose.ledger.hosts import spool, tokens
from rose.ledger.hosts.access_log import AccessLog
from rose.ledger.hosts.admission import MIDDLEWARE, Admission, Bearer
from rose.ledger.hosts.receive import SEGMENT_BYTES_MAX, Held, Receiver
from rose.ledger.layout import LedgerError
from rose.ledger.reading.query import query_arrow
from rose.ledger.writer import LedgerWriter

#: What a ticket may name; the gateway's own limits are below.
_TICKET_ROWS_MAX, _TICKET_S_MAX = 2**63 - 1, 86_400
#: An error travels twice, once with three bytes for one, and gRPC takes 8 KiB of it.
_ERROR_BYTES_MAX = 1600
#: Kinds of events that the ledger and its gateway write about themselves; nobody else brings them.
_OWN_KINDS = frozenset({Access.kind, Ledger.kind})


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


def _warn(text: str) -> None:
    from rose.terminal import echo

    echo(text, err=True)


@contextmanager
def serve(
    root: Path | str,
    host: str,
    port: int,
    *,
    token: str | None = None,
    tokens_file: Path | None = None,
    tls: Tls | None = None,
    limits: Limits | None = None,
    warn: Callable[[str], None] = _warn,
) -> Iterator[str]:
    """Answer on `host`:`port` (0: a free one) while the block runs; yields the URL. Makes a ledger if there is none.

    `tokens_file` holds named tokens, `token` is one that may do everything; with neither, anyone may. `warn` hears of
    a file of tokens that cannot be read any more. Raises LedgerError if `root` cannot be a ledger, if the tokens cannot
    be read, or if the address cannot be had; OpenAddressError if other machines could use it without a token, and
    SecretError for a short one.
    """
    if tokens_file is None:
        check_guarded(host, token, "--tokens, --token-file or ROSE_LEDGER_TOKEN")
    if tokens_file is not None:
        find: Callable[[str], tokens.Token] | None = tokens.Watched(tokens_file, warn).find
    else:
        known = None if token is None else tokens.everything(token)
        find = None if known is None else functools.partial(tokens.find, known)
    root = layout.create(root)
    # The views stand before the first event does.
    catalog.refresh_sound(root)
    shown = f"[{host}]" if ":" in host else host
    scheme = "grpc" if tls is None else "grpc+tls"
    options: dict[str, Any] = {"middleware": {MIDDLEWARE: Bearer()}}
    if tls is not None:
        options["tls_certificates"] = [(tls.certificate, tls.key)]
    try:
        server = _Server(root, limits or Limits(), find, f"{scheme}://{shown}:{port}", **options)
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"cannot listen on {shown}:{port}: {error}; give another address") from error
    try:
        yield f"{scheme}://{shown}:{server.port}"
    finally:
        server.shutdown()
        server.let_go()


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    """Each method is called in a thread of its own."""

    def __init__(
        self, root: Path, limits: Limits, find: Callable[[str], tokens.Token] | None, location: str, **options: Any
    ) -> None:
        self._root = root
        self._limits = limits
        self._receiver = Receiver(root, lambda event: self._own_writer().record(event))
        self._turns = threading.BoundedSemaphore(limits.queries)
        self._mutex = threading.Lock()
        self._writer: LedgerWriter | None = None
        self._log = AccessLog(self._own_writer)
        self._admission = Admission(self._log, find)
        # Last: from here on it answers.
        super().__init__(location, **options)

    def let_go(self) -> None:
        """Give back the names of the writers."""
        self._log.close()
        self._receiver.close()
        if self._writer is not None:
            self._writer.close()

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        with _errors():
            if action.type == "info":
                return [json.dumps(self._held(context, action.body.to_pybytes())).encode()]
            if action.type == "segment":
                return [json.dumps(asdict(self._receive(context, action.body))).encode()]
            self._admission.caller(context)
            raise LedgerError(f"{action.type!r} is not an action of this gateway; it has info and segment")

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        self._admission.caller(context)
        return [
            ("info", "What the gateway holds of each writer, as JSON."),
            ("segment", "Take in a segment."),
        ]

    def _held(self, context: flight.ServerCallContext, body: bytes) -> dict[str, Any]:
        """How far writers are: those that are asked about, or all. One's own, which one appends as, are no reading."""
        token = self._admission.caller(context).token
        wanted = _writers(body)
        if token.append and not token.may_read:
            asked = layout.writers(self._root) if wanted is None else wanted
            wanted = [writer for writer in asked if token.may_append(writer)]
        if wanted is not None and all(map(token.owns, wanted)):
            held = self._receiver.held(wanted)
        else:
            with self._admission.reading(context, "info"):
                held = self._receiver.held(wanted)
        return {"format": layout.FORMAT_VERSION, "writers": {writer: asdict(held[writer]) for writer in held}}

    def _receive(self, context: flight.ServerCallContext, body: pa.Buffer) -> Held:
        if len(body) > SEGMENT_BYTES_MAX + 1024:
            self._admission.caller(context)
            raise LedgerError(f"{len(body)} bytes; a segment may have {SEGMENT_BYTES_MAX}")
        path, _, content = body.to_pybytes().partition(b"\n")
        name = path.decode(errors="replace")
        if name.count("/") == 3:
            self._admission.appending(context, name.split("/")[1])
        else:
            # The receiver says that this is no path.
            self._admission.caller(context)
        return self._receiver.receive(name, content)

    def do_put(
        self,
        context: flight.ServerCallContext,
        _descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with _errors():
            # They enter under the gateway's own name.
            self._admission.appending(context, spool.GATEWAY_WRITER)
            batches, size_bytes = [], 0
            for chunk in reader:
                batches.append(chunk.data)
                size_bytes += chunk.data.nbytes
                if size_bytes > SEGMENT_BYTES_MAX:
                    raise LedgerError(f"more than {SEGMENT_BYTES_MAX} bytes at once; append them in several tables")
            table = pa.Table.from_batches(batches, reader.schema)
            if "event_id" not in table.column_names or table["event_id"].null_count:
                raise LedgerError(
                    "column 'event_id' is missing, or empty in some row; give each event an id, so that one that is "
                    "sent again counts once"
                )
            _check_kinds(table)
            self._own_writer().append(table)
            writer.write(json.dumps({"events": table.num_rows}).encode())

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        with _errors():
            self._admission.caller(context)
            asked = _ticket(ticket.ticket)
            with self._admission.reading(context, "query", asked["sql"]) as reading:
                table, truncated = self._query(**asked)
                reading.rows = table.num_rows
            return flight.RecordBatchStream(
                table.replace_schema_metadata({"truncated": json.dumps(truncated)}),
            )

    def list_flights(self, context: flight.ServerCallContext, _criteria: bytes) -> Iterator[flight.FlightInfo]:
        with _errors(), self._admission.reading(context, "info"):
            infos = [self._info(view) for view in catalog.VIEWS]
        yield from infos

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with _errors():
            view = descriptor.path[0].decode(errors="replace") if descriptor.path else ""
            with self._admission.reading(context, "info", view):
                if view not in catalog.VIEWS:
                    raise LedgerError(f"{view!r} is not a view of the ledger; the views are {', '.join(catalog.VIEWS)}")
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
        with self._turn():
            return query_arrow(
                self._root,
                sql,
                limit=min(limit, caps.rows),
                timeout_s=min(timeout_s, caps.timeout_s),
                memory_limit_gb=caps.memory_gb,
                lossless=lossless,
            )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The right to read files of the ledger, which few have at a time. Raises FlightUnavailableError."""
        if not self._turns.acquire(timeout=self._limits.wait_s):
            busy = f"the gateway is busy: {self._limits.queries} queries are running; try again later"
            raise flight.FlightUnavailableError(busy, busy.encode())
        try:
            yield
        finally:
            self._turns.release()

    def _own_writer(self) -> LedgerWriter:
        with self._mutex:
            if self._writer is None:
                self._writer = LedgerWriter.open(self._root, spool.GATEWAY_WRITER, spool.GATEWAY_WRITER)
            return self._writer


def _check_kinds(table: pa.Table) -> None:
    """Raises LedgerError if the table has events that only the ledger itself writes."""
    with suppress(pa.ArrowException, KeyError):
        # Whatever holds the text; what is no text is refused later.
        kinds = table["kind"].cast(pa.string())
        for kind in sorted(_OWN_KINDS):
            if (row := pc.index(kinds, kind).as_py()) >= 0:
                raise LedgerError(f"kind {kind!r} in row {row}: the ledger itself writes such events; leave them out")


def _writers(body: bytes) -> list[str] | None:
    """The writers that somebody asks about; None: all. Raises LedgerError."""
    if not body:
        return None
    try:
        wanted = json.loads(body)["writers"]
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerError('info takes nothing, or JSON such as {"writers": ["rack-7.trainer"]}') from error
    if not isinstance(wanted, list) or not all(isinstance(writer, str) for writer in wanted):
        raise LedgerError(f"info: writers is {str(wanted)[:60]!r}, and must be a list of names")
    return wanted


def _ticket(content: bytes) -> dict[str, Any]:
    """What a ticket asks for. Raises LedgerError."""
    fields: dict[str, Any] = {"limit": 10_000, "timeout_s": 30.0, "lossless": False}
    kinds = {"sql": str, "limit": int, "timeout_s": int | float, "lossless": bool}
    try:
        fields |= json.loads(content)
    except (ValueError, TypeError) as error:
        raise LedgerError('a ticket is JSON such as {"sql": "from lease", "limit": 100, "timeout_s": 10}') from error
    for name, kind in kinds.items():
        value = fields.get(name)
        if not isinstance(value, kind) or (name != "lossless" and isinstance(value, bool)):
            raise LedgerError(f"the ticket's {name} is {str(value)[:60]!r}, which has the wrong type")
    for name, most in (("limit", _TICKET_ROWS_MAX), ("timeout_s", _TICKET_S_MAX)):
        # Not a number is in no range.
        if not 0 <= fields[name] <= most:
            raise LedgerError(f"the ticket's {name} is {str(fields[name])[:60]}; give one from 0 to {most}")
    if unknown := set(fields) - set(kinds):
        raise LedgerError(f"the ticket has {min(unknown)!r}, which no ticket has; it may have {', '.join(kinds)}")
    return fields


@contextmanager
def _errors() -> Iterator[None]:
    """What went wrong, in the words of the ledger: the rest of the message is gRPC's."""
    try:
        yield
    except LedgerError as error:
        text = _bounded(str(error))
        raise flight.FlightServerError(text, text.encode()) from error
    except OSError as error:
        text = f"the gateway's disk refuses it: {error.strerror}"
        raise flight.FlightServerError(text, text.encode()) from error


def _bounded(text: str) -> str:
    """`text` without its middle if it is longer than an error of gRPC may be: a refusal repeats what was sent."""
    content = text.encode(errors="backslashreplace")
    if len(content) <= _ERROR_BYTES_MAX:
        return text
    first, last = content[: _ERROR_BYTES_MAX - 600], content[-590:]
    return f"{first.decode(errors='ignore')} [...] {last.decode(errors='ignore')}"
