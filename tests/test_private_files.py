import hashlib
import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rose import private_files, tokens
from rose.private_files import NotPrivateError, SecretError
from rose.runtime.scheduling.runs.state import FILE, RunFacts, State
from rose.tokens import TokenError, UnknownTokenError
from tests import strangers


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_each_file_is_this_user_s_alone_from_its_first_byte(tmp_path, open_umask, monkeypatch):
    seen = []
    open_file = os.open

    def looked_at(path, flags, *arguments, **named):
        descriptor = open_file(path, flags, *arguments, **named)
        seen.append((Path(path).name, stat.S_IMODE(os.fstat(descriptor).st_mode)))
        return descriptor

    monkeypatch.setattr(os, "open", looked_at)
    private_files.write(tmp_path / "token", "a")
    private_files.create(tmp_path / "empty")
    (tmp_path / "empty").chmod(0o644)
    private_files.create(tmp_path / "empty")
    assert seen == [(".token.partial", 0o600), ("empty", 0o600), ("empty", 0o644)]
    assert modes(tmp_path) == {"token": 0o600, "empty": 0o600}


def test_a_link_is_not_followed_to_another_file(tmp_path):
    (tmp_path / "other").write_text("other's")
    (tmp_path / "secret").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        private_files.create(tmp_path / "secret")
    private_files.write(tmp_path / "secret", "mine")
    assert (tmp_path / "other").read_text() == "other's"


def test_what_an_older_version_left_open_is_closed_before_it_is_opened(tmp_path, open_umask):
    with_token = RunFacts(run_id="r", name="n", model="m", opened_us=1, token="token-of-a-store")
    state = State(tmp_path)
    state.keep(with_token)
    assert modes(tmp_path) == dict.fromkeys((FILE, f"{FILE}-wal", f"{FILE}-shm", "controller.lock"), 0o600)
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (tmp_path / name).chmod(0o644)
    tmp_path.chmod(0o755)
    state._unlock()
    later = State(tmp_path)
    assert set(modes(tmp_path).values()) == {0o600}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert later.runs() == [with_token]
    later.close()
    state.close()


def test_a_short_token_is_refused_and_not_shown():
    with pytest.raises(
        SecretError, match="the token has 5 characters and needs 16: make it with `openssl rand -hex 32`"
    ):
        private_files.check_token("guess")
    assert private_files.check_token("0123456789abcdef") == "0123456789abcdef"
    for weak in ("x" * 16, " " * 16, "0123456789 abcdef"):
        with pytest.raises(private_files.SecretError, match="blanks, or fewer than 6 different"):
            private_files.check_token(weak)


def test_a_file_that_others_may_use_is_said_to_be_so_with_the_way_out(tmp_path):
    path = tmp_path / "token"
    path.touch(mode=0o600)
    assert private_files.open_to_others(path) is None
    for mode in (0o640, 0o604, 0o666):
        path.chmod(mode)
        assert (
            private_files.open_to_others(path)
            == f"has mode {mode:04o}, so that others may use it: type `chmod 600 {path}`"
        )


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_folder_is_made_for_its_user_alone_and_made_again_is_the_same(tmp_path):
    folder = private_files.make(tmp_path / "a" / "b")
    (folder / "file").touch()
    assert private_files.make(folder) == folder
    assert (mode(folder), private_files.is_private(folder)) == (0o700, True)
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_an_own_folder_that_others_read_is_closed_and_one_that_others_write_to_is_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o755)
    assert not private_files.is_private(folder)
    private_files.make(folder)
    assert mode(folder) == 0o700
    for open_to_others in (0o770, 0o707):
        folder.chmod(open_to_others)
        with pytest.raises(NotPrivateError, match=f"folder has mode {open_to_others:04o}: other users may use it"):
            private_files.make(folder)


def test_a_link_is_no_folder(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(private_files.make(tmp_path / "folder"))
    with pytest.raises(NotPrivateError, match="link is a link: remove it"):
        private_files.make(link)
    assert not private_files.is_private(link)


def test_a_file_is_made_once_and_opened_by_its_one_name(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="file"):
        private_files.open_file(path)
    for _ in range(2):
        with os.fdopen(private_files.open_file(path, os.O_CREAT), "a") as file:
            file.write("a")
    assert (path.read_text(), mode(path)) == ("aa", 0o600)
    (tmp_path / "other").hardlink_to(path)
    with pytest.raises(NotPrivateError, match="not a regular file, or has a second hard link"):
        private_files.open_file(path)


def test_what_is_no_private_file_is_refused_and_left_as_it_was(tmp_path):
    target, link, public, pipe = (tmp_path / name for name in ("target", "link", "public", "pipe"))
    target.touch(0o600)
    target.write_text("precious")
    link.symlink_to(target)
    public.touch()
    public.chmod(0o644)
    os.mkfifo(pipe, 0o600)
    for path, why in ((link, "is a link"), (public, "has mode 0644"), (pipe, "not a regular file")):
        with pytest.raises(NotPrivateError, match=f"{path.name} {why}|{path.name} is {why}"):
            private_files.open_file(path, os.O_CREAT)
    assert target.read_text() == "precious"
    tmp_path.chmod(0o755)
    with pytest.raises(NotPrivateError, match="has mode 0755"):
        private_files.open_file(target)


def test_a_linked_folder_has_a_name_that_nobody_can_guess_and_keeps_it(tmp_path):
    homes = [tmp_path / name for name in ("one", "two")]
    folders = []
    for home in homes:
        home.mkdir()
        folders.append(private_files.make_linked(home / "link", tmp_path, "rose-"))
        assert private_files.make_linked(home / "link", tmp_path, "rose-") == folders[-1]
    assert folders[0] != folders[1]
    folders[0].rmdir()  # as a boot does
    assert private_files.make_linked(homes[0] / "link", tmp_path, "rose-") == folders[0]


def test_processes_that_come_at_once_have_one_linked_folder(tmp_path):
    ready = threading.Barrier(8)

    def make(_):
        ready.wait()
        return private_files.make_linked(tmp_path / "link", tmp_path, "rose-")

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(make, range(8)))
    assert len(set(folders)) == 1
    assert [path for path in tmp_path.iterdir() if not path.is_symlink()] == [folders[0]]


@strangers.needs_another_user
@pytest.mark.parametrize("trap", ["mkdir -m 0700 {}", "mkdir -m 0777 {}", "ln -s {}-elsewhere {}", "touch {}"])
def test_what_another_user_made_in_the_place_of_a_folder_is_refused_and_a_linked_one_is_elsewhere(tmp_path, trap):
    with strangers.everybodys_folder() as home:
        before = private_files.make_linked(tmp_path / "link", home, "rose-")
        before.rmdir()
        assert strangers.succeeds(trap.format(before, before))
        with pytest.raises(OSError, match=r"belongs to user|is a link|Not a directory"):
            private_files.make(before)
        folder = private_files.make_linked(tmp_path / "link", home, "rose-")
        assert folder != before
        assert private_files.is_private(folder)
        assert private_files.make_linked(tmp_path / "link", home, "rose-") == folder


@strangers.needs_another_user
def test_a_file_of_another_user_is_opened_only_where_that_user_is_named(tmp_path):
    path = private_files.make(tmp_path / "folder") / "file"
    path.touch(0o600)
    for owned in (path, path.parent):
        os.chown(owned, strangers.UID, strangers.UID)
        with pytest.raises(NotPrivateError, match=f"belongs to user {strangers.UID}, not to user 0"):
            private_files.open_file(path)
    os.close(private_files.open_file(path, users=[strangers.UID]))


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
    assert opened(path, tokens.create(path, "rack-7", ("admin",))).may("publish")
    with pytest.raises(TokenError, match=r"unknown token 'gone'.*it has rack-7"):
        tokens.revoke(path, "gone")


@pytest.mark.parametrize(
    ("name", "scopes", "writers", "named"),
    [
        ("x", (), (), "'x' has no scope"),
        ("x", ("append",), (), "'x' has no scope"),
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
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda n: tokens.create(path, f"t{n}", ("read",)), range(20)))
    assert {token["name"] for token in json.loads(path.read_text())["tokens"]} == {f"t{n}" for n in range(20)}
