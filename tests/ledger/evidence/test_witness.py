from __future__ import annotations

import json
import shutil
import signal
import threading
from pathlib import Path

import pytest

from rose.clock import utc_us
from rose.ledger import layout
from rose.ledger.evidence import continuation, keys, proof, receipt, witness
from rose.ledger.evidence.witness import Ask, Checkpoint, RefusedError, Witness
from rose.ledger.growth import compaction
from rose.ledger.hosts import gateway
from rose.ledger.hosts.remote import Gateway
from rose.ledger.layout import LedgerError
from rose.ledger.verify import verify
from tests import programs
from tests.ledger.evidence import ledgers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = layout.create(tmp_path / "ledger")
    ledgers.write(made, "a", epochs=2)
    ledgers.write(made, "b")
    return made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "witness"


def _ask(root: Path) -> Ask:
    return lambda question: proof.answer(root, question)


def _countersign(root: Path, state: Path, signed_by: str | None = None) -> Checkpoint:
    with Witness.open(state) as own:
        return own.countersign(_ask(root), signed_by=signed_by)


def test_what_goes_on_is_countersigned(root: Path, state: Path) -> None:
    first = _countersign(root, state)
    assert (first.new_events, first.new_writers) == (12, ("a", "b"))
    ledgers.write(root, "a", epochs=2)
    ledgers.write(root, "c")
    compaction.compact(root, grace_s=0)
    second = _countersign(root, state)
    assert second.new_events >= 12
    assert "c" in second.new_writers
    (given,) = second.receipt.countersignatures
    assert given.previous_sha256 == first.receipt.sha256
    own = keys.load_or_make()
    assert own is not None
    assert given.key != own.public == second.receipt.key
    assert [path.name.partition("-")[0] for path in sorted(state.glob("*.json"))] == ["00000000", "00000001"]
    named = continuation.read([state])
    assert continuation.check(verify(root, marks=continuation.marks(named)), named).problems == []


def test_a_ledger_that_was_rewritten_is_refused_and_both_histories_are_kept(root: Path, state: Path) -> None:
    _countersign(root, state)
    ledgers.write(root, "a")
    ledgers.write(root, "a")
    accepted = _countersign(root, state)

    def history(other: Path) -> None:
        for epochs in (2, 1, 1):
            ledgers.write(other, "a", epochs=epochs, power_mw=lambda seq: 9 if seq >= 10 else 7)
        ledgers.write(other, "b")

    ledgers.rewritten(root, history)
    assert verify(root).problems == []
    for attempt in range(2):
        with pytest.raises(RefusedError, match="writer a was rewritten: its events up to seq 15") as caught:
            _countersign(root, state)
        assert "it was changed from seq 8 on: up to there it is as it was countersigned" in str(caught.value)
        kept = json.loads((state / "refused" / f"{attempt:08d}.json").read_bytes())
        assert kept["after"] == accepted.path.name
        assert kept["problems"][0].startswith("writer a was rewritten")
        shown = proof.read(bytes.fromhex(kept["answer_hex"]))
        assert shown.receipt.writers["a"] != accepted.receipt.writers["a"]
    assert sorted(state.glob("*.json"))[-1] == accepted.path


def test_a_ledger_that_was_set_back_is_refused_also_when_it_goes_on(root: Path, state: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    _countersign(root, state)
    ledgers.write(root, "b")
    _countersign(root, state)
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    with pytest.raises(RefusedError, match="writer b was set back: it ends at seq 3, and had events up to 7"):
        _countersign(root, state)
    ledgers.write(root, "b", power_mw=lambda seq: 8)
    ledgers.write(root, "b", power_mw=lambda seq: 8)
    with pytest.raises(RefusedError, match="writer b was rewritten: its events up to seq 7 are not what they were"):
        _countersign(root, state)


def test_a_writer_that_is_gone_is_refused(root: Path, state: Path) -> None:
    _countersign(root, state)
    ledgers.rewritten(root, lambda other: ledgers.write(other, "a", epochs=2))
    with pytest.raises(RefusedError, match="writer b is gone; it had 4 events"):
        _countersign(root, state)


def test_of_two_copies_that_went_apart_only_one_goes_on(root: Path, state: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    _countersign(root, state)
    shutil.copytree(root, fork)
    ledgers.write(root, "a", power_mw=lambda seq: 1)
    ledgers.write(fork, "a", power_mw=lambda seq: 2)
    _countersign(root, state)
    with pytest.raises(RefusedError):
        _countersign(fork, state)
    _countersign(root, state)


def test_a_history_that_was_shown_once_is_kept_though_the_ledger_goes_away(
    root: Path, state: Path, tmp_path: Path
) -> None:
    fork = shutil.copytree(root, tmp_path / "fork")
    _countersign(root, state)
    ledgers.write(root, "a")
    _countersign(root, state)
    ledgers.write(fork, "a", power_mw=lambda seq: 2)
    asked: list[bytes] = []

    def ask_once(question: bytes) -> bytes:
        asked.append(question)
        if len(asked) > 1:
            raise LedgerError("the gateway is away")
        return proof.answer(fork, question)

    with Witness.open(state) as own, pytest.raises(RefusedError, match="writer a was rewritten") as caught:
        own.countersign(ask_once)
    kept = state / "refused" / "00000000.json"
    assert str(kept) in str(caught.value)
    assert kept.exists()


def test_another_ledger_and_another_key_are_not_countersigned(
    root: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _countersign(root, state)
    other = layout.create(tmp_path / "other")
    ledgers.write(other, "a")
    with pytest.raises(LedgerError, match=f"has checkpoints of the ledger {first.receipt.ledger}, and this is"):
        _countersign(other, state)
    monkeypatch.setenv(keys.VARIABLE, str(tmp_path / "other.key"))
    new = keys.load_or_make()
    assert new is not None
    with pytest.raises(LedgerError, match=f"the receipt is signed by {new.public}, and {first.receipt.key}"):
        _countersign(root, state)
    assert _countersign(root, state, signed_by=new.public).receipt.key == new.public
    assert _countersign(root, state).receipt.key == new.public


def test_its_state_is_of_one_process_and_out_of_the_ledger(root: Path, state: Path) -> None:
    with Witness.open(state), pytest.raises(LedgerError, match="another witness works in"):
        _countersign(root, state)
    with pytest.raises(LedgerError, match=f"lies in the ledger {root}"):
        _countersign(root, root / "witness")
    assert not (root / "witness").exists()
    (state.parent / "file").touch()
    with pytest.raises(LedgerError, match="cannot keep checkpoints in"):
        _countersign(root, state.parent / "file" / "state")


def test_a_checkpoint_that_was_changed_or_put_there_is_named(root: Path, state: Path, tmp_path: Path) -> None:
    path = _countersign(root, state).path
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(LedgerError, match=f"{path} is not a receipt, or it is damaged"):
        _countersign(root, state)
    path.write_bytes(receipt.take(root).content())
    with pytest.raises(LedgerError, match=f"{path} was not countersigned by the key"):
        _countersign(root, state)
    path.write_bytes(content)
    # What a witness leaves that was killed while it wrote.
    (state / f".{path.name}.1.1.tmp").write_bytes(content[:100])
    _countersign(root, state)
    assert not list(state.glob(".*.tmp"))


def test_of_earlier_days_one_checkpoint_stays_and_after_a_refusal_all(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_us, began_us = 86_400_000_000, utc_us() // 86_400_000_000 * 86_400_000_000
    for hour in range(0, 24 * 5, 8):
        monkeypatch.setattr(witness, "utc_us", lambda hour=hour: began_us + hour * day_us // 24)
        _countersign(root, state)
    numbers = [int(path.name.partition("-")[0]) for path in sorted(state.glob("*.json"))]
    assert numbers == [2, 5, 8, 9, 10, 11, 12, 13, 14]
    (state / "refused").mkdir()
    monkeypatch.setattr(witness, "utc_us", lambda: began_us + 9 * day_us)
    _countersign(root, state)
    assert len(list(state.glob("*.json"))) == len(numbers) + 1


def test_through_a_gateway_while_writers_write(root: Path, state: Path) -> None:
    token, stop = "t0ken-of-enough-characters", threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            ledgers.write(root, "a")
            ledgers.write(root, "b")

    writing = threading.Thread(target=go_on)
    with gateway.serve(root, "127.0.0.1", 0, token=token) as url, Gateway(url, token=token) as client:
        writing.start()
        try:
            with Witness.open(state) as own:
                seen = [own.countersign(client.receipt).receipt.events for _ in range(10)]
        finally:
            stop.set()
            writing.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    named = continuation.read([state])
    assert continuation.check(verify(root, marks=continuation.marks(named)), named).problems == []


#: Countersigns, and is killed just before it touches a file of its state for the n-th time.
_KILLED = """
import os, signal, sys
from rose.ledger.evidence import proof
from rose.ledger.evidence.witness import Witness
root, state, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
def hook(event, args):
    global left
    if event in ("open", "os.rename", "os.remove", "os.link", "os.mkdir") and str(args[0]).startswith(state):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
with Witness.open(state) as own:
    own.countersign(lambda question: proof.answer(root, question))
print(int(sys.argv[3]) - left)
"""


@pytest.mark.long
def test_killed_at_any_moment_it_goes_on_and_never_takes_another_history(
    root: Path, state: Path, tmp_path: Path
) -> None:
    fork = shutil.copytree(root, tmp_path / "fork")
    ledgers.write(fork, "a", power_mw=lambda seq: 99)
    ledgers.write(fork, "a", power_mw=lambda seq: 99)
    point, killed, known = 0, 0, 0
    while True:
        point += 1
        ledgers.write(root, "b", per_epoch=1)
        returncode, said = programs.run(_KILLED, root, state, point)
        if returncode == 0:
            assert int(said) < point
            break
        assert returncode == -signal.SIGKILL
        killed += 1
        files = sorted(state.glob("*.json"))
        assert known <= len(files) <= known + 1
        known = len(files)
        with Witness.open(state) as own:
            assert all(own._read(path) for path in files)
    assert killed >= 8
    ledgers.write(root, "a", per_epoch=1)
    _countersign(root, state)
    with pytest.raises(RefusedError):
        _countersign(fork, state)
    _countersign(root, state)
