import io
import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rose.ledger.files import keys, rows
from rose.ledger.files.content import ranges_sha256, rows_sha256
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.segments import Link, chain_sha256, link_message
from tests.ledger.evidence.ledgers import parquet

SCHEMA = rows.schema()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = {pa.int64(): INTEGERS, pa.float64(): st.floats(), pa.string(): TEXTS, pa.bool_(): st.booleans()}
NAMES = ["at_us", "t0_ns", "t1_ns", "compute_share", "reward", "lease_id", "reason", "ok", "accepted"]


@st.composite
def tables(draw):
    count = draw(st.integers(1, 20))
    first = draw(st.integers(0, 1000))
    columns = {
        "writer": pa.array(["w"] * count),
        "seq": pa.array(range(first, first + count), pa.int64()),
        "kind": pa.array(draw(st.lists(st.sampled_from(["turn", "lease", "power"]), min_size=count, max_size=count))),
    }
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=2)):
        kind = SCHEMA.field(name).type
        columns[name] = pa.array(draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), kind)
    return pa.table(columns)


def _rechunked(table, data):
    cut = data.draw(st.integers(0, table.num_rows))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


def _with_garbage(table):
    for index, field in enumerate(table.schema):
        array = table.column(index).combine_chunks()
        if array.null_count and not pa.types.is_boolean(field.type):
            filler = {"int64": 7, "double": 0.5, "string": "garbage"}[str(field.type)]
            filled = array.fill_null(filler).buffers()
            made = pa.Array.from_buffers(field.type, len(array), [array.is_valid().buffers()[1], *filled[1:]])
            assert made.equals(array) or pa.types.is_floating(field.type)
            table = table.set_column(index, field, made)
    return table


def _null_columns(table):
    for field in SCHEMA:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table


@given(tables(), st.data())
def test_the_digest_is_of_the_content_however_it_is_stored(table, data):
    expected = rows_sha256(table)
    shuffled = table.take(pa.array(data.draw(st.permutations(range(table.num_rows)))))
    names = data.draw(st.permutations(table.column_names))
    encoded = {name: table[name].dictionary_encode() for name in names if pa.types.is_string(table[name].type)}
    large = pa.schema([(f.name, pa.large_string() if pa.types.is_string(f.type) else f.type) for f in table.schema])
    others = {
        "chunks": _rechunked(table, data),
        "rows shuffled": shuffled,
        "columns shuffled": table.select(names),
        "columns of nulls": _null_columns(table),
        "garbage under nulls": _with_garbage(table),
        "a slice": pa.concat_tables([table.slice(0, 1), table]).combine_chunks().slice(1),
        "dictionaries": pa.table({name: encoded.get(name, table[name]) for name in names}),
        "long texts": table.cast(large),
        "Parquet": pq.read_table(io.BytesIO(parquet(shuffled, use_dictionary=False, compression="none"))),
    }
    for how, other in others.items():
        assert rows_sha256(other) == expected, how


@given(tables(), st.data())
def test_any_other_content_has_another_digest(table, data):
    name = data.draw(st.sampled_from([name for name in table.column_names if name != "seq"]))
    index, row = table.column_names.index(name), data.draw(st.integers(0, table.num_rows - 1))
    values, kind = table[name].to_pylist(), table[name].type
    changed = [*values]
    changed[row] = data.draw(st.none() | VALUES[kind])
    before, after = (pa.array(those, kind) for those in (values, changed))
    assume(not before.equals(after) and not (before.is_valid().equals(after.is_valid()) and _nan(values, changed)))
    assert rows_sha256(table.set_column(index, name, after)) != rows_sha256(table)


def _nan(values, changed):
    pairs = zip(values, changed, strict=True)
    return all(left == right or {repr(left), repr(right)} == {"nan"} for left, right in pairs)


@given(tables(), st.data())
def test_swapped_rows_and_swapped_columns_have_another_digest(table, data):
    order = pa.array(data.draw(st.permutations(range(table.num_rows))))
    body = table.drop(["seq"])
    swapped = body.take(order)
    assume(not swapped.equals(body) and repr(swapped.to_pylist()) != repr(body.to_pylist()))
    assert rows_sha256(swapped.append_column("seq", table["seq"])) != rows_sha256(table)


@given(tables(), st.data())
def test_a_file_that_is_cut_has_the_digests_of_its_ranges(table, data):
    count, first = table.num_rows, table["seq"][0].as_py()
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, count), max_size=5))), count]
    expected = [rows_sha256(table.slice(a, b - a)) for a, b in itertools.pairwise(bounds)]
    shuffled = table.take(pa.array(data.draw(st.permutations(range(count)))))
    found = ranges_sha256(parquet(shuffled, row_group_size=7), [first + bound for bound in bounds[:-1]])
    assert found[0] == expected


def test_numbers_that_are_equal_and_not_the_same_have_digests_of_their_own():
    payload = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    zeros = [pa.array([0.0]), pa.array([-0.0]), pa.array([float("nan")]), pa.array(payload)]
    assert len({rows_sha256(pa.table({"seq": [0], "reward": zero})) for zero in zeros}) == 4


def test_no_rows_have_one_digest_whatever_their_columns():
    empty = SCHEMA.empty_table()
    assert rows_sha256(empty) == rows_sha256(empty.select(["seq"])) == rows_sha256(empty.slice(0))
    assert ranges_sha256(parquet(empty), [5, 5])[0] == [rows_sha256(empty)] * 2


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"kind": ["turn"]}),
        pa.table({"seq": pa.array([None], pa.int64())}),
        pa.table({"seq": [0], "t0_ns": pa.array([1], pa.int32())}),
        pa.Table.from_arrays([pa.array([0]), pa.array([1]), pa.array([2])], names=["seq", "x", "x"]),
    ],
)
def test_rows_of_which_there_is_no_digest_are_refused(table):
    with pytest.raises(LedgerError, match=r"seq|type int32"):
        rows_sha256(table)


def test_the_digest_stays_what_it_is():
    """A release that computed another one would call every ledger forged."""
    columns = {"seq": [3, 4, 5], "kind": ["turn", "lease", "turn"], "reward": [0.5, None, -1.0]}
    digest = rows_sha256(pa.table(columns | {"ok": [True, False, None], "lease_id": [None, "\u00e9", ""]}))
    assert digest == "e0d44b66ac90d2cf3dcc7db5d7ad23f6fd32a6ed4db39aec2e75c4487e679dce"
    chain = chain_sha256("", "w", 3, 5, digest)
    assert chain == "bfa6b0c870486f33bdf5c1624ab650eaaaa84a5dfb14f68801f942b68aab87f6"


ENTRY = {"file": "live/w/000000/0", "first_seq": 3, "last_seq": 5, "sha256": "f", "previous_sha256": ""}
ENTRY |= {"rows_sha256": "r", "chain_sha256": "c", "key": "", "signature": ""}


def _signed(previous="before"):
    key = keys.load_or_make()
    link = Link.read("w", ENTRY)
    digest = (link.writer, link.first_seq, link.last_seq, link.rows_sha256)
    link = replace(link, chain_sha256=chain_sha256(previous, *digest))
    return replace(link, key=key.public, signature=key.sign(link_message(link.chain_sha256)))


def test_an_entry_is_a_link_with_values_of_the_right_types_and_digests():
    link = Link.read("w", ENTRY)
    assert (link.events, link.entry()) == (3, ENTRY)
    for lacks in ("rows_sha256", "chain_sha256"):
        with pytest.raises(ValueError, match="without a digest of its rows"):
            Link.read("w", ENTRY | {lacks: ""})
    for name, value in (("first_seq", "3"), ("last_seq", True), ("key", 5)):
        with pytest.raises(TypeError, match=name):
            Link.read("w", ENTRY | {name: value})


def test_a_link_goes_on_from_one_end_alone():
    link = _signed()
    assert (link.fault("before"), link.fault(None), link.signature_fault()) == (None, None, None)
    assert "does not follow the segment before it" in str(link.fault("f"))


def test_what_a_link_says_and_who_signed_it_cannot_be_changed():
    for changed in [{"first_seq": 2}, {"last_seq": 6}, {"rows_sha256": "q"}, {"writer": "v"}]:
        assert replace(_signed(), **changed).fault("before") is not None
    for changed in ({"key": "0" * 64}, {"key": ""}, {"signature": ""}, {"signature": "0" * 128}, {"chain_sha256": "f"}):
        assert "is not by the key" in str(replace(_signed(), **changed).signature_fault())


def test_a_signature_of_another_link_says_nothing_without_a_digest():
    assert replace(_signed(), rows_sha256="").fault("before") is not None
