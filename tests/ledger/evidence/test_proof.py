from __future__ import annotations

import json
from pathlib import Path

import pytest

from rose.ledger import layout
from rose.ledger.evidence import proof, receipt
from rose.ledger.evidence.proof import leads
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.layout import LedgerError
from tests.ledger.evidence import ledgers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = layout.create(tmp_path / "ledger")
    ledgers.write(made, "a", epochs=2)
    ledgers.write(made, "b")
    return made


@pytest.mark.long
def test_it_leads_from_one_receipt_to_the_next_whatever_became_of_the_files(root: Path) -> None:
    before = receipt.take(root)
    ledgers.write(root, "a", epochs=3)
    compaction.compact(root, grace_s=0)
    rollup.roll_up(root)
    archive.archive(root, older_than_days=1, to=None, delete=True, grace_s=0)
    ledgers.write(root, "a")
    answer = proof.read(proof.answer(root, proof.question(before.writers)))
    assert set(answer.links) == {"a", "b"}
    for writer, packed in answer.links.items():
        assert packed is not None
        after = answer.receipt.writers[writer]
        assert leads(writer, before.writers[writer], packed, after)
        assert leads("other", before.writers[writer], packed, after) is (not packed)
        assert not packed or not leads(writer, before.writers[writer], packed[36:], after)
        assert not packed or not leads(writer, before.writers[writer], packed[:-1] + b"\0", after)
    assert answer.links["b"] == b""
    assert len(answer.links["a"] or b"") % 36 == 0


def test_from_another_history_there_is_no_way(root: Path) -> None:
    before = receipt.take(root)
    ledgers.rewritten(root, lambda other: ledgers.write(other, "a", epochs=2, power_mw=lambda seq: 8))
    answer = proof.read(proof.answer(root, proof.question(before.writers)))
    assert answer.links == {"a": None, "b": None}


@pytest.mark.parametrize(
    "question", [b"", b"[]", b'{"writers": 7}', b'{"writers": {"a": 1}}', b'{"writers": {"a": ["x", "y"]}}']
)
def test_a_question_that_is_none_is_refused(root: Path, question: bytes) -> None:
    with pytest.raises(LedgerError, match="a question for a proof is JSON such as"):
        proof.answer(root, question)


def test_of_names_that_are_no_writer_nothing_is_looked_for(root: Path) -> None:
    answer = proof.read(proof.answer(root, json.dumps({"writers": {"../b": [0, ""], "nobody": [0, ""]}}).encode()))
    assert answer.links == {"../b": None, "nobody": None}


def test_an_answer_that_is_none_is_refused(root: Path) -> None:
    whole = proof.answer(root, b'{"writers": {"a": [0, ""]}}')
    assert proof.read(whole).links["a"] is not None
    for content in (b"", b"{}", whole[:-1], whole + b"\0", whole[:50], b"[]\n"):
        with pytest.raises(LedgerError, match="the answer is not a proof"):
            proof.read(content)
    with pytest.raises(LedgerError, match="the receipt of the ledger: the signature is wrong"):
        proof.read(whole.replace(b'"events": ', b'"events": 1', 1))
