import json
from contextlib import suppress

import pytest

from rose.clock import utc_us
from rose.ledger.evidence import receipt
from rose.ledger.files import keys, layout, registry, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from tests.ledger.conftest import copied
from tests.ledger.evidence import ledgers


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = layout.create(tmp_path_factory.mktemp("receipt") / "ledger")
    ledgers.write(root, "a", epochs=2)
    ledgers.write(root, "b", per_epoch=1)
    return root


@pytest.fixture
def root(whole, tmp_path):
    return copied(whole, tmp_path / "ledger")


def test_it_names_how_far_each_writer_is_and_what_it_signs_with(root):
    before_us = utc_us()
    taken = receipt.take(Ledger(root))
    key = keys.load_or_make()
    assert before_us <= taken.at_us <= utc_us()
    assert taken.ledger == layout.ledger_id(root) != ""
    assert (taken.events, taken.key) == (10, key.public)
    marks = {name: (mark.next_seq, mark.keys) for name, mark in taken.writers.items()}
    assert marks == {"a": (8, (key.public,)), "b": (2, (key.public,))}
    newest = segments.read_header((root / taken.writers["a"].segment).read_bytes())
    assert taken.writers["a"].chain_sha256 == newest.chain_sha256
    assert taken.registry_bytes == (root / registry.FILE).stat().st_size > 0
    assert (taken.roll_up, taken.verified) == (None, None)


def test_it_names_the_roll_up_and_the_last_verification_and_is_read_as_it_was_written(root, tmp_path):
    compaction.compact(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root))
    assert Ledger(root).verify().problems == []
    taken = receipt.take(Ledger(root))
    assert taken.roll_up.generation == 0
    assert taken.verified["sound"] is True
    (tmp_path / "receipt.json").write_bytes(taken.content())
    assert receipt.read(tmp_path / "receipt.json") == taken


def _edited(change):
    def edit(content):
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return edit


EDITS = [
    (lambda content: content[:-100], "is not a receipt, or it is damaged"),
    (lambda content: b"", "is not a receipt, or it is damaged"),
    (lambda content: b"[]", "is not a receipt, or it is damaged"),
    (_edited(lambda document: document.pop("writers")), "is not a receipt, or it is damaged"),
    (_edited(lambda document: document.update(writers={"a": 1})), "is not a receipt, or it is damaged"),
    (_edited(lambda document: document.update(rose_receipt=4)), "is a receipt of format 4"),
    (_edited(lambda document: document["writers"]["a"].update(next_seq=7)), "the signature is wrong"),
    (_edited(lambda document: document["writers"].pop("b")), "the signature is wrong"),
    (_edited(lambda document: document.update(at="2020-01-01T00:00:00.000000Z")), "the signature is wrong"),
    (_edited(lambda document: document.update(events=11)), "the signature is wrong"),
    (_edited(lambda document: document.update(note="more")), "the signature is wrong"),
    (_edited(lambda document: document.update(signature="00")), "the signature is wrong"),
    (_edited(lambda document: document.update(key="not a key")), "the signature is wrong"),
]


def test_what_was_changed_is_refused(root, tmp_path):
    path, content = tmp_path / "receipt.json", receipt.take(Ledger(root)).content()
    for edit, says in EDITS:
        path.write_bytes(edit(content))
        with pytest.raises(LedgerError, match=says) as caught:
            receipt.read(path)
        assert str(path) in str(caught.value)


CHANGES = [
    lambda made: made["writers"]["a"].update(segment=5),
    lambda made: made["writers"]["a"].update(next_seq=-1),
    lambda made: made["writers"]["a"].update(next_seq=True),
    lambda made: made["writers"]["a"].update(next_seq="8"),
    lambda made: made["writers"]["a"].update(next_seq=2**63),
    lambda made: made["writers"]["a"].update(chain_sha256="x"),
    lambda made: made["writers"]["a"].update(keys=[5]),
    lambda made: made["writers"].update({"../a": made["writers"]["a"]}),
    lambda made: made.update(registry_bytes=1.5),
    lambda made: made.update(registry_sha256=None),
    lambda made: made.update(by=None),
    lambda made: made.update(roll_up={"generation": "0", "coverage_sha256": 64 * "0"}),
    lambda made: made.update(roll_up={"generation": 0, "coverage_sha256": "0"}),
    lambda made: made.update(verified=[]),
]


def test_what_no_ledger_says_is_refused_though_it_is_signed(root):
    key, taken = keys.load_or_make(), receipt.take(Ledger(root))
    for change in CHANGES:
        document = taken.to_json()
        change(document)
        with suppress(TypeError):
            document["events"] = sum(mark["next_seq"] for mark in document["writers"].values())
        unsigned = {name: value for name, value in document.items() if name != "signature"}
        document["signature"] = key.sign(b"rose receipt 1\n" + receipt.canonical(unsigned))
        path = root.with_name("receipt.json")
        path.write_text(json.dumps(document))
        with pytest.raises(LedgerError, match="is not a receipt, or it is damaged"):
            receipt.read(path)


def test_it_is_the_same_whatever_was_merged(root):
    before = receipt.take(Ledger(root))
    compaction.compact(Ledger(root), grace_s=0)
    compaction.compact(Ledger(root), grace_s=0)
    after = receipt.take(Ledger(root))
    assert {name: after.writers[name] for name in before.writers} == before.writers
    assert after.sha256 != before.sha256


def test_a_receipt_is_never_written_into_a_ledger_nor_over_another_file(root, tmp_path):
    content = receipt.take(Ledger(root)).content()
    with pytest.raises(LedgerError, match="lies in the ledger"):
        receipt.keep(root / "live" / "r.json", content)
    (tmp_path / "there.json").write_text("")
    with pytest.raises(LedgerError, match=r"there\.json exists"):
        receipt.keep(tmp_path / "there.json", content)
    with pytest.raises(LedgerError, match="there is no folder"):
        receipt.keep(tmp_path / "no" / "r.json", content)
