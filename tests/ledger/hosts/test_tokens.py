"""Named tokens: what their file holds, who is let through, and what becomes of them."""

from __future__ import annotations

import hashlib
import json
import stat
import threading

import pytest

from rose.clock import utc_us
from rose.ledger import layout
from rose.ledger.hosts import tokens
from rose.ledger.hosts.tokens import TokenError
from rose.ledger.layout import LedgerError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.json"


def found(path, secret):
    return tokens.find(tokens.read(path), secret)


def test_a_token_is_in_nobody_s_hands_but_the_one_it_was_given_to(path):
    secret = tokens.create(path, "rack-7", append=("rack-7.*",))
    text = path.read_text()
    assert secret not in text
    assert secret[-16:] not in text
    assert hashlib.sha256(secret.encode()).hexdigest() in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(secret.removeprefix("rose_"))) == tokens.TOKEN_BYTES
    assert tokens.create(path, "other", read=True) != secret


def test_scopes_are_what_was_given_and_no_more(path):
    secret = tokens.create(path, "rack-7", append=("rack-7.*", "gpu-?"))
    token = found(path, secret)
    allowed = [writer for writer in ("rack-7.agent", "rack-7", "gpu-3", "gpu-31", "x", "") if token.may_append(writer)]
    assert allowed == ["rack-7.agent", "gpu-3"]
    assert not token.may_read
    reader = found(path, tokens.create(path, "finance", read=True))
    assert (reader.may_read, reader.may_append("gpu-3"), reader.admin) == (True, False, False)
    every = found(path, tokens.create(path, "boss", admin=True))
    assert (every.may_read, every.may_append("gateway")) == (True, True)
    assert tokens.grant(path, "rack-7", read=True, append=("gpu-?", "x")).scopes == (
        "read, append rack-7.*, append gpu-?, append x"
    )
    # Its secret is the same one.
    assert found(path, secret).may_read


def test_what_is_known_of_a_token_that_ended_is_told_to_its_holder_alone(path):
    secret = tokens.create(path, "rack-7", append=("*",), life_s=1e-6)
    with pytest.raises(TokenError, match=r"'rack-7' expired at 20.*`rose ledger token rotate rack-7 ") as ended:
        found(path, secret)
    assert ended.value.who == "rack-7"
    unknown = set()
    for guess in ("rose_" + "0" * 64, secret[:-1], secret + "0", secret.upper(), "rack-7"):
        with pytest.raises(TokenError) as refused:
            found(path, guess)
        unknown.add(str(refused.value))
        assert refused.value.who is None
    assert len(unknown) == 1
    assert "rack-7" not in unknown.pop()
    with pytest.raises(TokenError, match="the token was not sent"):
        found(path, "")


def test_a_rotation_lets_both_through_until_its_grace_is_over(path):
    first = tokens.create(path, "rack-7", append=("*",), life_s=86_400)
    second = tokens.rotate(path, "rack-7", 3600)
    assert found(path, first) == found(path, second)
    old, new = found(path, second).keys
    assert old.ended_by == "rotation"
    # The new one lives as long as the first would have.
    assert new.until_us - new.made_us == 86_400_000_000
    third = tokens.rotate(path, "rack-7", 1e-6)
    assert found(path, third)
    for gone in (first, second):
        with pytest.raises(TokenError, match="'rack-7' was replaced by a new one at"):
            found(path, gone)


def test_a_revoked_name_can_be_used_again(path):
    first = tokens.create(path, "rack-7", append=("*",))
    with pytest.raises(LedgerError, match="'rack-7' is there"):
        tokens.create(path, "rack-7", read=True)
    tokens.revoke(path, "rack-7")
    with pytest.raises(TokenError, match=r"'rack-7' was revoked at .*`rose ledger token create rack-7 "):
        found(path, first)
    with pytest.raises(LedgerError, match="was revoked; `rose ledger token create rack-7`"):
        tokens.rotate(path, "rack-7", 60)
    second = tokens.create(path, "rack-7", read=True)
    assert found(path, second).scopes == "read"
    with pytest.raises(TokenError, match="was revoked"):
        found(path, first)


def test_a_token_that_had_expired_stays_revoked(path):
    first = tokens.create(path, "rack-7", append=("*",), life_s=1e-6)
    tokens.revoke(path, "rack-7")
    (token,) = tokens.read(path)
    assert token.state(utc_us()) == "revoked"
    with pytest.raises(TokenError, match="`rose ledger token create rack-7 "):
        found(path, first)
    tokens.grant(path, "rack-7", read=True)
    with pytest.raises(LedgerError, match="was revoked; `rose ledger token create rack-7`"):
        tokens.rotate(path, "rack-7", 60)
    second = tokens.create(path, "rack-7", append=("*",))
    assert found(path, second).state(utc_us()) == "valid"


def test_a_token_stays_revoked_when_its_keys_are_forgotten(path, monkeypatch):
    tokens.create(path, "rack-7", append=("*",))
    tokens.revoke(path, "rack-7")
    monkeypatch.setattr(tokens, "_REMEMBERED_US", -1_000_000)
    tokens.create(path, "other", read=True)
    token, _ = tokens.read(path)
    assert token.keys == ()
    assert token.state(utc_us()) == "revoked"
    with pytest.raises(LedgerError, match="was revoked; `rose ledger token create rack-7`"):
        tokens.rotate(path, "rack-7", 60)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda path: tokens.create(path, "x"), "could do nothing"),
        (lambda path: tokens.create(path, "a b", read=True), "name 'a b' cannot be used"),
        (lambda path: tokens.create(path, "x", append=("a/b",)), "append 'a/b' cannot be used"),
        (lambda path: tokens.revoke(path, "gone"), "no token 'gone'; there are rack-7"),
        (lambda path: tokens.read(path.with_name("gone")), "gone: No such file.*token create"),
        (lambda path: tokens.create(path.parent / "no" / "such" / "t", "x", read=True), "No such file"),
    ],
)
def test_what_cannot_be_done_is_said(path, act, says):
    tokens.create(path, "rack-7", read=True)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=says):
        act(path)
    assert path.read_bytes() == before


def test_a_file_of_tokens_is_kept_out_of_ledgers(tmp_path):
    root = layout.create(tmp_path / "ledger")
    (root / "deep").mkdir()
    for inside in (root / "tokens", root / "deep" / "tokens"):
        with pytest.raises(LedgerError, match="keep it outside"):
            tokens.create(inside, "x", read=True)


def test_a_file_that_others_may_use_is_refused(path):
    tokens.create(path, "x", read=True)
    path.chmod(0o640)
    with pytest.raises(LedgerError, match=f"mode 0640, so that others may use it; `chmod 600 {path}`"):
        tokens.read(path)


def _key(sha256):
    return {"sha256": sha256, "made_us": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "damaged"),
        (b"\xff", "damaged"),
        ({"rose_tokens": 2}, "damaged at rose_tokens"),
        ({"tokens": [{"name": "x", "reed": True}]}, "damaged at tokens.0.reed"),
        ({"tokens": [{"name": "x", "read": 1}]}, "damaged at tokens.0.read"),
        ({"tokens": [{"name": "x"}, {"name": "x"}]}, "'x' appears twice"),
        ({"tokens": [{"name": "x", "keys": [_key("0" * 64)]}, {"name": "y", "keys": [_key("0" * 64)]}]}, "twice"),
        ({"tokens": [{"name": "x", "keys": [_key("secret")]}]}, "damaged at tokens.0.keys.0.sha256"),
    ],
)
def test_a_damaged_file_is_named(path, content, says):
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    path.chmod(0o600)
    with pytest.raises(LedgerError, match=says):
        tokens.read(path)


def test_a_changed_file_counts_at_once_and_a_damaged_one_not_at_all(path):
    first = tokens.create(path, "rack-7", append=("*",))
    warned = []
    watched = tokens.Watched(path, warned.append)
    assert watched.find(first).name == "rack-7"
    second = tokens.create(path, "finance", read=True)
    assert watched.find(second).name == "finance"
    sound = path.read_bytes()
    path.write_bytes(sound[:40])
    for _ in range(3):
        assert watched.find(second).name == "finance"
    path.unlink()
    assert watched.find(first).name == "rack-7"
    assert [text.count("Until then the tokens that were read last are valid") for text in warned] == [1, 1]
    assert first not in "".join(warned)
    path.write_bytes(sound)
    path.chmod(0o600)
    tokens.revoke(path, "finance")
    with pytest.raises(TokenError, match="was revoked"):
        watched.find(second)
    assert warned[2:] == [f"{path} can be read again"]


def test_commands_at_the_same_time_lose_no_token(path):
    made: dict[str, str] = {}
    tokens.create(path, "first", read=True)

    def many(number):
        for n in range(5):
            made[f"t{number}-{n}"] = tokens.create(path, f"t{number}-{n}", read=True)

    threads = [threading.Thread(target=many, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 20
    assert all(found(path, secret).name == name for name, secret in made.items())
    assert sorted(file.name for file in path.parent.iterdir()) == [".tokens.json.lock", "tokens.json"]
