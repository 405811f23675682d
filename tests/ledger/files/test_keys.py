import itertools
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rose.ledger.files import keys
from rose.ledger.files.layout import LedgerError


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "config" / "rose" / "ledger.key"
    monkeypatch.setenv("ROSE_LEDGER_KEY", str(path))
    return path


def test_a_key_is_made_once_and_for_this_user_alone(path):
    key = keys.load_or_make()
    assert keys.load_or_make() == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [path] == list(path.parent.iterdir())
    assert (len(key.public), len(key.sign(b""))) == (64, 128)
    assert path.read_text().splitlines()[1] not in repr(key)


def test_a_signature_is_of_one_message_by_one_key(path):
    key = keys.load_or_make()
    signature = key.sign(b"message")
    path.unlink()
    other = keys.load_or_make()
    assert keys.check(key.public, b"message", signature)
    assert not keys.check(key.public, b"another", signature)
    assert not keys.check(other.public, b"message", signature)
    assert not keys.check(key.public, b"message", other.sign(b"message"))
    for public, text in (("", ""), ("no key", signature), (key.public, "no hex"), (key.public[:-2], signature)):
        assert not keys.check(public, b"message", text)


#: All encodings of Curve25519's points of order 1, 2, 4 and 8, but for the sign of x.
_SMALL_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]


def test_a_point_of_small_order_is_no_key():
    """With the neutral element for a key, the same signature is right for every message."""
    for weak, sign in itertools.product(_SMALL_ORDER, (0, 0x80)):
        public = weak[:-2] + f"{int(weak[-2:], 16) | sign:02x}"
        assert not keys.is_public(public)
        for first, number in itertools.product(_SMALL_ORDER, range(16)):
            assert not keys.check(public, f"{number}".encode(), first + "00" * 32)


def test_processes_that_begin_at_once_end_with_one_key(path):
    program = "from rose.ledger.files import keys; print(keys.load_or_make().public)"
    started = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {process.communicate(timeout=60)[0] for process in started} == {f"{keys.load_or_make().public}\n"}


def test_without_a_place_for_a_key_there_is_none(tmp_path, monkeypatch):
    """Nobody can make a folder below a file; root could below a folder that is read-only."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROSE_LEDGER_KEY", str(tmp_path / "file" / "rose" / "ledger.key"))
    assert keys.load_or_make() is None


def test_where_the_key_lies():
    assert keys.key_path({"ROSE_LEDGER_KEY": "/k", "XDG_CONFIG_HOME": "/c"}) == Path("/k")
    assert keys.key_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/rose/ledger.key")
    assert keys.key_path({}) == Path.home() / ".config/rose/ledger.key"


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (None, 0o640, "others may read the signing key"),
        (b"", 0o600, "is damaged"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 0o600, "is damaged"),
    ],
)
def test_a_key_that_others_may_read_or_that_is_damaged_is_refused(path, content, mode, says):
    keys.load_or_make()
    if content is not None:
        path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(LedgerError, match=says) as error:
        keys.load_or_make()
    assert str(path) in str(error.value)
    assert os.access(path, os.F_OK)
