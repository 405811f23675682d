"""Events that come as an Arrow table, from a host or a program of its own: checked by the column, not by the row."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rose.event_fields import AMOUNT_MAX, Range
from rose.events import KINDS, NOT_MEASURED, Power, Provenance
from rose.ledger import rows
from rose.ledger.layout import LedgerError

#: What the ledger itself numbers; a table may not bring them along.
_NUMBERED = ("writer", "seq")
#: Columns without which no event stands.
REQUIRED = ("kind", "run_id", "provenance", "at_us")
#: More rows belong in several tables: one table is one file.
ROWS_MAX = 1_000_000

Columns = dict[str, pa.Array]
#: What a column may be given as; the ledger's own type is wider or as wide.
_SORTS: dict[pa.DataType, tuple[Callable[[pa.DataType], bool], ...]] = {
    pa.int64(): (pa.types.is_integer,),
    pa.float64(): (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    pa.bool_(): (pa.types.is_boolean,),
    pa.string(): (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
}


def checked(table: pa.Table) -> pa.Table:
    """`table` in the ledger's own types, if every one of its rows is an event.

    Columns are `kind`, `run_id`, `provenance`, `at_us`, and any other of the ledger but writer and seq. Raises
    LedgerError naming the column, the value and its row if something does not fit; then no row of it counts.
    """
    if table.num_rows > ROWS_MAX:
        raise LedgerError(f"a table of {table.num_rows} events; give at most {ROWS_MAX} at a time")
    try:
        # What came over a network may be no text, and point anywhere.
        table.validate(full=True)
    except pa.ArrowException as error:
        raise LedgerError(f"the table is damaged: {error}") from error
    columns: Columns = {}
    for name, given in zip(table.column_names, table.columns, strict=True):
        wanted = _types().get(name)
        if wanted is None or name in columns:
            raise LedgerError(f"column {name!r} is not a column of events, or appears twice")
        try:
            columns[name] = _whole(_cast(given, wanted))
        except pa.ArrowException as error:
            raise LedgerError(f"column {name!r} must be {wanted}, not {given.type}: {error}") from error
    for name in REQUIRED:
        if name not in columns:
            raise LedgerError(f"column {name!r} is missing; every event has {', '.join(REQUIRED)}")
        if columns[name].null_count:
            raise _wrong(columns, name, columns[name].is_null(), "a value")
    if (empty := pc.equal(columns["run_id"], "")).true_count:
        raise _wrong(columns, "run_id", empty, "the run's id")
    allowed = get_args(Provenance)
    if (among := pc.is_in(columns["provenance"], value_set=pa.array(allowed))).true_count < table.num_rows:
        raise _wrong(columns, "provenance", pc.invert(among), f"one of {', '.join(allowed)}")
    if table.num_rows:
        _check_kinds(columns)
    return pa.table({name: column for name, column in columns.items() if column.null_count < len(column)})


@functools.cache
def _types() -> dict[str, pa.DataType]:
    return {field.name: field.type for field in rows.schema() if field.name not in _NUMBERED}


@functools.cache
def _fields() -> dict[str, rows.Field]:
    """A field by its name; what is one name is one range in all kinds."""
    return {field.name: field for kind in KINDS for field in rows.fields_of(kind)}


@functools.cache
def _amounts() -> frozenset[str]:
    ranges = {name: field.range for name, field in _fields().items() if field.range is not None}
    return frozenset(name for name, one in ranges.items() if (one.least, one.most) == (0, AMOUNT_MAX))


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type is a narrower or wider form of a column's: no number comes out of a text or a truth."""
    kind = given.value_type if pa.types.is_dictionary(given) else given
    return pa.types.is_null(kind) or any(is_sort(kind) for is_sort in _SORTS[wanted])


def _cast(given: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Raises ArrowException."""
    if given.type == wanted:
        return given
    if not fits(given.type, wanted):
        raise pa.ArrowTypeError("give the type itself")
    # A large integer is rounded to the nearest float, as Python does it.
    return given.cast(wanted, safe=wanted != pa.float64())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _check_kinds(columns: Columns) -> None:
    """Each kind has its own columns and no others; counted for all kinds at once, since most batches mix them."""
    encoded = columns["kind"].dictionary_encode()
    named = np.array(encoded.dictionary.to_pylist())
    kinds, codes = np.sort(named).tolist(), np.argsort(np.argsort(named))[encoded.indices.to_numpy()]
    is_kind = codes[:, None] == np.arange(len(kinds))
    events = is_kind.sum(axis=0)
    names = tuple(columns)
    own, required, absent = _expected(tuple(kinds), names)
    masks, mask_of = _masks(columns)
    # Events of each kind that have a value in each column; float32 counts exactly up to 2^24.
    filled = (masks.astype(np.float32) @ is_kind.astype(np.float32))[mask_of]
    wrong = ((filled > 0) & ~own) | ((filled < events) & required)
    if wrong.any():
        index, code = np.argwhere(wrong)[0]
        bad = is_kind[:, code] & (masks[mask_of[index]] != own[index, code])
        wanted = "a value" if own[index, code] else f"empty in an event of kind {kinds[code]!r}"
        raise _wrong(columns, names[index], bad, wanted)
    if absent:
        raise LedgerError("event {!r}: column {!r} is missing".format(*absent))
    for index, allowed in _allowed(tuple(kinds), names):
        _check_allowed(columns, names[index], codes, masks[mask_of[index]], allowed)
    _check_all_values(columns, masks, mask_of)
    for index, kind in enumerate(kinds):
        _check_rules(columns, kind, is_kind[:, index])
    if Power.kind in kinds:
        _check_power(columns, codes == kinds.index(Power.kind))


@functools.lru_cache(maxsize=256)
def _expected(kinds: tuple[str, ...], names: tuple[str, ...]) -> tuple[Any, Any, tuple[str, str] | None]:
    """Whether each column may, and must, have a value in events of each kind; and a (kind, column) that is missing."""
    fields = [{field.name: field for field in rows.fields_of(kind)} for kind in kinds]
    own = np.array([[name in REQUIRED or name in by_name for by_name in fields] for name in names])
    required = np.array([[name in by_name and not by_name[name].optional for by_name in fields] for name in names])
    for kind, by_name in zip(kinds, fields, strict=True):
        for field in by_name.values():
            if not field.optional and field.name not in names:
                return own, required, (kind, field.name)
    return own, required, None


@functools.lru_cache(maxsize=256)
def _allowed(kinds: tuple[str, ...], names: tuple[str, ...]) -> list[tuple[int, list[tuple[str, ...]]]]:
    """Places of the columns that some kind allows a few values alone, and those of each kind; none where all are."""
    literals = [{field.name: field.allowed for field in rows.fields_of(kind)} for kind in kinds]
    by_column = ((index, [of_kind.get(name, ()) for of_kind in literals]) for index, name in enumerate(names))
    return [(index, allowed) for index, allowed in by_column if any(allowed)]


def _check_allowed(columns: Columns, name: str, codes: Any, valid: Any, allowed: list[tuple[str, ...]]) -> None:
    encoded = columns[name].dictionary_encode()
    values = encoded.dictionary.to_pylist()
    # Where there is no value, there may be any index.
    indices = np.where(valid, np.frombuffer(encoded.indices.buffers()[1], np.int32, len(codes)), len(values))
    counts = np.bincount(codes * (len(values) + 1) + indices, minlength=len(allowed) * (len(values) + 1))
    for code, index in np.argwhere(counts.reshape(len(allowed), -1)[:, :-1]).tolist():
        if allowed[code] and values[index] not in allowed[code]:
            raise _wrong(columns, name, (codes == code) & (indices == index), f"one of {', '.join(allowed[code])}")


def _check_all_values(columns: Columns, masks: Any, mask_of: list[int]) -> None:
    """Most integers are amounts, and all of a row are in range together if their bits are: one look for all of them."""
    amounts = []
    bits = np.zeros(masks.shape[1], np.int64)
    fields = _fields()
    for (name, column), mask in zip(columns.items(), mask_of, strict=True):
        if (field := fields.get(name)) is None or column.null_count == len(column):
            continue
        if name in _amounts():
            amounts.append((field, mask))
            np.bitwise_or(bits, _numbers(column, np.int64), out=bits)
        else:
            _check_values(columns, field, masks[mask])
    if (bits.view(np.uint64) > AMOUNT_MAX).any():
        # Or there is anything where a row has no value.
        for field, mask in amounts:
            _check_values(columns, field, masks[mask])


def _check_values(columns: Columns, field: rows.Field, valid: Any) -> None:
    match field.sql_type:
        case "BIGINT":
            assert field.range is not None
            least, most = field.range.least, field.range.most
            # Below the least, an unsigned integer is above the most.
            wrong = (_numbers(columns[field.name], np.int64) - least).view(np.uint64) > most - least
        case "DOUBLE":
            numbers = _numbers(columns[field.name], np.float64)
            within = np.isfinite(numbers) if field.range is None else _within(numbers, field.range)
            wrong = ~within
        case "VARCHAR" if field.filled:
            wrong = _lengths(columns[field.name]) == 0
        case _:
            return
    if wrong.any() and (wrong := wrong & valid).any():
        raise _wrong(columns, field.name, wrong, field.wanted)


def _within(numbers: Any, limits: Range) -> Any:
    """False for what is no number."""
    return (numbers >= limits.least) & (numbers <= limits.most)


def _check_rules(columns: Columns, kind: str, of_kind: Any) -> None:
    if not (rules := KINDS[kind].rules):
        return
    for rule in rules:
        named = {name: _numbers(columns[name], np.int64) for name in rows.names(rule)}
        if (wrong := of_kind & ~rows.holds(rule)(named)).any():
            raise _wrong(columns, rule.field, wrong, rule.wanted)


def _check_power(columns: Columns, power: Any) -> None:
    unmeasured = power & np.asarray(pc.equal(columns["source"], NOT_MEASURED).fill_null(False))
    has_power = _valid(columns["power_mw"]) if "power_mw" in columns else np.zeros(len(power), dtype=bool)
    if (wrong := power & ~unmeasured & ~has_power).any():
        if "power_mw" not in columns:
            raise LedgerError("event {!r}: column {!r} is missing".format(Power.kind, "power_mw"))
        raise _wrong(columns, "power_mw", wrong, f"a value unless source is {NOT_MEASURED!r}")
    if (wrong := unmeasured & has_power).any():
        raise _wrong(columns, "power_mw", wrong, f"empty where source is {NOT_MEASURED!r}")


def _valid(column: pa.Array) -> Any:
    """Whether each row has a value, bool[rows]; from the bitmap itself, ten times as fast as asking Arrow."""
    if column.null_count == 0:
        return np.ones(len(column), dtype=bool)
    bitmap = column.buffers()[0]
    if bitmap is None:
        return np.zeros(len(column), dtype=bool)
    first, last = column.offset, column.offset + len(column)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8)[first // 8 : (last + 7) // 8], bitorder="little")
    return bits[first % 8 : first % 8 + len(column)].view(bool)


def _masks(columns: Columns) -> tuple[Any, list[int]]:
    """The different answers to which rows have a value, bool[answers, rows], and the place of each column's.

    The columns of one kind share one, so a third of them are left to look at.
    """
    places: dict[tuple[int, bytes], int] = {}
    masks: list[Any] = []
    mask_of = []
    for column in columns.values():
        bitmap, first = column.buffers()[0] if column.null_count else None, column.offset
        if bitmap is None:
            key = column.null_count, b""
        else:
            key = first % 8, memoryview(bitmap)[first // 8 : (first + len(column) + 7) // 8].tobytes()
        if (place := places.setdefault(key, len(masks))) == len(masks):
            masks.append(_valid(column))
        mask_of.append(place)
    return np.stack(masks), mask_of


def _numbers(column: pa.Array, dtype: type[np.int64 | np.float64]) -> Any:
    """of[rows], with anything where there is no value."""
    if column.buffers()[1] is None:
        return np.zeros(len(column), dtype=dtype)
    return np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]


def _lengths(column: pa.Array) -> Any:
    """Bytes of each text, int32[rows], with anything where there is no value."""
    return np.diff(np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1])


def _wrong(columns: Columns, name: str, wrong: Any, wanted: str) -> LedgerError:
    row = int(np.argmax(wrong))
    kind, value = columns["kind"][row].as_py(), columns[name][row].as_py()
    return LedgerError(f"{rows.refusal(kind, name, wanted, value)} in row {row}")
