"""Named tokens: what their file holds, who is let through, and what becomes of them."""

from __future__ import annotations

import hashlib
import json
import stat
import threading

import pytest

from rose import tokens
from rose.tokens import TokenError, UnknownTokenError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.json"


def opened(path, secret):
    return tokens.find(tokens.read(path), secret)


def test_a_token_is_in_nobody_s_hands_but_the_one_it_was_given_to(path):
    secret = tokens.create(path, "rack-7", (), ("rack-7.*",))
    text = path.read_text()
    assert secret not in text
    assert secret[-16:] not in text
    assert hashlib.sha256(secret.encode()).hexdigest() in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(secret.removeprefix("rose_"))) == 32
    assert tokens.create(path, "other", ("read",)) != secret


def test_scopes_are_what_was_given_and_no_more(path):
    host = opened(path, tokens.create(path, "rack-7", (), ("rack-7.*", "gpu-?")))
    writers = ("rack-7.agent", "rack-7", "gpu-3", "gpu-31", "x", "")
    assert [writer for writer in writers if host.may_append(writer)] == ["rack-7.agent", "gpu-3"]
    assert not any(host.may(scope) for scope in ("read", "generate", "publish", "admin"))
    reader = opened(path, tokens.create(path, "finance", ("read",)))
    assert (reader.may("read"), reader.may("generate"), reader.may_append("gpu-3")) == (True, False, False)
    boss = opened(path, tokens.create(path, "boss", ("admin",)))
    assert all(boss.may(scope) for scope in tokens.SCOPES)
    assert boss.may_append("gpu-3")
    assert not boss.owns("gpu-3")


def test_what_is_known_of_a_token_that_expired_is_told_to_its_holder_alone(path):
    secret = tokens.create(path, "rack-7", ("read",), life_s=1e-6)
    with pytest.raises(UnknownTokenError, match=r"'rack-7' expired at 20") as ended:
        opened(path, secret)
    assert ended.value.who == "rack-7"
    answers = set()
    for guess in ("rose_" + "0" * 64, secret[:-1], secret + "0", secret.upper(), "rack-7"):
        with pytest.raises(UnknownTokenError) as refused:
            opened(path, guess)
        answers.add(str(refused.value))
        assert refused.value.who is None
    assert len(answers) == 1
    assert "rack-7" not in answers.pop()
    with pytest.raises(UnknownTokenError, match="is missing"):
        opened(path, "")


def test_a_name_is_free_again_once_its_token_ended(path):
    first = tokens.create(path, "rack-7", ("read",))
    with pytest.raises(TokenError, match="'rack-7' exists"):
        tokens.create(path, "rack-7", ("read",))
    tokens.revoke(path, "rack-7")
    with pytest.raises(UnknownTokenError):
        opened(path, first)
    tokens.create(path, "rack-7", ("read",), life_s=1e-6)
    second = tokens.create(path, "rack-7", ("admin",))
    assert opened(path, second).may("publish")
    with pytest.raises(TokenError, match=r"no token 'gone'.*there are rack-7"):
        tokens.revoke(path, "gone")


@pytest.mark.parametrize(
    ("name", "scopes", "writers", "named"),
    [
        ("x", (), (), "'x' could do nothing"),
        ("x", ("append",), (), "'x' could do nothing"),
        ("a b", ("read",), (), "name 'a b'"),
        ("", ("read",), (), "name ''"),
        ("x", (), ("a/b",), "a/b"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(path, name, scopes, writers, named):
    with pytest.raises(TokenError, match=named):
        tokens.create(path, name, scopes, writers)
    assert not path.exists()


def test_a_file_that_others_may_read_or_that_is_damaged_is_named(path):
    with pytest.raises(TokenError, match="No such file"):
        tokens.read(path)
    tokens.create(path, "x", ("read",))
    content = path.read_text()
    path.chmod(0o640)
    with pytest.raises(TokenError, match="mode 0640"):
        tokens.read(path)
    path.chmod(0o600)
    for damage in ("", "{", content.replace('"read"', '"everything"'), content.replace("rose_tokens", "other")):
        path.write_text(damage)
        with pytest.raises(TokenError, match=f"{path}: damaged at"):
            tokens.read(path)


def test_a_watched_file_is_taken_up_and_one_that_is_gone_leaves_the_last(path):
    first = tokens.create(path, "first", ("read",))
    heard = []
    watched = tokens.Watched(path, heard.append)
    second = tokens.create(path, "second", ("read",))
    assert tokens.find(watched.tokens, second).name == "second"
    kept = path.rename(path.with_name("kept"))
    assert tokens.find(watched.tokens, first).name == "first"
    assert len(heard) == 1
    kept.rename(path)
    tokens.revoke(path, "first")
    with pytest.raises(UnknownTokenError):
        tokens.find(watched.tokens, first)


def test_makers_at_the_same_time_lose_none(path):
    threads = [threading.Thread(target=tokens.create, args=(path, f"t{n}", ("read",))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token["name"] for token in json.loads(path.read_text())["tokens"]} == {f"t{n}" for n in range(20)}
