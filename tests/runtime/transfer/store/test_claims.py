from __future__ import annotations

import os
from pathlib import Path

import pytest

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.manifest import Package
from rose.runtime.transfer.store.claims import Claims


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_pin_lasts_as_long_as_it_is_renewed(tmp_path: Path) -> None:
    clock = Clock()
    claims = Claims(tmp_path, clock)
    first = claims.pin([Package(0, None), Package(1, 0)], 10)
    second = claims.pin([Package(1, 0)], 5)
    assert first != second
    way, part = ["00000000-anchor", "00000001-from-00000000"], ["00000001-from-00000000"]
    assert sorted(claims.pinned()) == [way, part]
    clock.now_s += 9
    claims.renew(first, 4)
    with pytest.raises(TransferError, match="has expired; plan and pin the way again"):
        claims.renew(second, 10)
    assert Claims(tmp_path, clock).pinned() == [way]
    assert [path.stem for path in (tmp_path / "pins").iterdir()] == [first]
    clock.now_s += 4
    assert claims.pinned() == []
    assert not list((tmp_path / "pins").iterdir())


def test_a_pin_can_be_let_go(tmp_path: Path) -> None:
    claims = Claims(tmp_path, Clock())
    pin = claims.pin([Package(0, None)], 10)
    claims.unpin(pin)
    claims.unpin(pin)
    assert claims.pinned() == []
    with pytest.raises(TransferError, match="no pin"):
        claims.renew(pin, 10)


@pytest.mark.parametrize("name", ["../secret", "", "x" * 32, "/etc/passwd", "0" * 31])
def test_no_name_from_outside_reaches_a_path(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"packages": [], "until_unix_s": 1e9}')
    claims = Claims(tmp_path, Clock())
    claims.unpin(name)
    with pytest.raises(TransferError, match="there is no pin"):
        claims.renew(name, 10)
    assert secret.exists()


DAMAGED = [
    "",
    "{",
    "[]",
    "null",
    "{}",
    '{"packages": [], "until_unix_s": 1e9}',
    '{"packages": "x", "until_unix_s": 1e9}',
    '{"packages": [7], "until_unix_s": 1e9}',
    '{"packages": ["x"], "until_unix_s": "1"}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_named_and_keeps_nothing_from_being_seen(tmp_path: Path, content: str) -> None:
    claims = Claims(tmp_path, Clock())
    pin = claims.pin([Package(0, None)], 10)
    claims.acknowledge("host", 0)
    (tmp_path / "pins" / f"{pin}.json").write_text(content)
    for path in (tmp_path / "acks").iterdir():
        path.write_text(content.replace("packages", "receiver"))
    with pytest.raises(TransferError, match=rf"pins/{pin}\.json is damaged.*; remove it"):
        claims.pinned()
    with pytest.raises(TransferError, match=rf"pins/{pin}\.json is damaged"):
        claims.renew(pin, 10)
    with pytest.raises(TransferError, match=r"acks/\w+\.json is damaged.*; remove it"):
        claims.acknowledged(10)


def test_receivers_are_forgotten_when_they_are_silent(tmp_path: Path) -> None:
    clock = Clock()
    claims = Claims(tmp_path, clock)
    names = ["host-1", "../../etc/passwd", "", "x" * 10_000, "\ud800"]
    for version, name in enumerate(names):
        claims.acknowledge(name, version)
    clock.now_s += 60
    claims.acknowledge("host-1", 7)
    assert claims.acknowledged(61) == {**dict(zip(names, range(5), strict=True)), "host-1": 7}
    assert all(path.parent == tmp_path / "acks" for path in tmp_path.rglob("*.json"))
    assert claims.acknowledged(60) == {"host-1": 7}
    assert Claims(tmp_path, clock).acknowledged(1_000) == {"host-1": 7}


def test_pins_and_receivers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose.runtime.transfer.store.claims.PINS_MAX", 3)
    monkeypatch.setattr("rose.runtime.transfer.store.claims.RECEIVERS_MAX", 3)
    clock = Clock()
    claims = Claims(tmp_path, clock)
    for _ in range(3):
        claims.pin([Package(0, None)], 10)
    with pytest.raises(TransferError, match="3 pins are held"):
        claims.pin([Package(0, None)], 10)
    clock.now_s += 11
    claims.pin([Package(0, None)], 10)
    assert len(claims.pinned()) == 1
    for number in range(5):
        claims.acknowledge(f"host-{number}", number)
        clock.now_s += 1
        os.utime(max((tmp_path / "acks").iterdir(), key=lambda path: path.stat().st_mtime_ns), (number, number))
    assert sorted(claims.acknowledged(100)) == ["host-2", "host-3", "host-4"]
    claims.acknowledge("host-2", 9)
    assert claims.acknowledged(100)["host-2"] == 9
