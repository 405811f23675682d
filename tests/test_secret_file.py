"""Files of secrets: nobody else may read them at any moment, whatever the umask and whatever was there before."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from rose import secret_file
from rose.runtime.scheduling.runs.state import FILE, RunFacts, State
from rose.secret_file import SecretError

#: Prints what it can read of the controller's files in a folder, again and again until it is told to end.
_READER = 'cd "$0"; echo looking; while [ ! -e end ]; do cat controller.* 2>/dev/null; done'
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_each_file_is_this_user_s_alone_from_its_first_byte(tmp_path, open_umask, monkeypatch):
    seen = []
    made = os.open

    def looked_at(path, flags, *arguments, **named):
        descriptor = made(path, flags, *arguments, **named)
        seen.append((Path(path).name, stat.S_IMODE(os.fstat(descriptor).st_mode)))
        return descriptor

    monkeypatch.setattr(os, "open", looked_at)
    secret_file.write(tmp_path / "token", "a")
    secret_file.create(tmp_path / "empty")
    assert seen == [(".token.partial", 0o600), ("empty", 0o600)]
    assert modes(tmp_path) == {"token": 0o600, "empty": 0o600}


def test_a_file_or_folder_that_was_open_to_others_is_closed_and_said_to_be(tmp_path, open_umask, caplog):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    (folder / "kept").write_text("kept")
    secret_file.make_folder(folder)
    secret_file.make_folder(tmp_path / "new")
    secret_file.create(folder / "kept")
    assert ((folder / "kept").read_text(), modes(folder)) == ("kept", {"kept": 0o600})
    assert modes(tmp_path) == {"state": 0o700, "new": 0o700}
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder} was open to other users (mode 0755); now it is not"
    ]


def test_a_link_is_not_followed_to_another_file(tmp_path):
    (tmp_path / "other").write_text("other's")
    (tmp_path / "secret").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        secret_file.create(tmp_path / "secret")
    secret_file.write(tmp_path / "secret", "mine")
    assert (tmp_path / "other").read_text() == "other's"


@root_only
def test_a_folder_of_another_user_is_refused(tmp_path):
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 65534, 65534)
    with pytest.raises(PermissionError, match=r"state belongs to user 65534: name a folder of this user"):
        secret_file.make_folder(tmp_path / "state")


@root_only
def test_another_user_reads_nothing_of_the_controller_s_state_whenever_he_looks(open_umask, monkeypatch):
    # He may enter the folder, so that the files' own modes are what is tried.
    monkeypatch.setattr(secret_file, "make_folder", lambda path: path.mkdir(exist_ok=True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        reader = subprocess.Popen([*user, "sh", "-c", _READER, name], stdout=subprocess.PIPE)
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"looking\n"
        kept = {FILE, f"{FILE}-wal", f"{FILE}-shm", "controller.lock"}
        for number in range(50):
            state = State(folder)
            state.keep(RunFacts(run_id=f"r{number}", name="n", model="m", opened_us=1, token="token-of-a-store"))
            assert modes(folder) == dict.fromkeys(kept, 0o600)
            state.close()
            for path in folder.iterdir():
                path.unlink()
        (folder / "end").touch()
        output, _ = reader.communicate(timeout=60)
    assert output == b""


def test_what_an_older_version_left_open_is_closed_before_it_is_opened(tmp_path, open_umask):
    with_token = RunFacts(run_id="r", name="n", model="m", opened_us=1, token="token-of-a-store")
    state = State(tmp_path)
    state.keep(with_token)
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (tmp_path / name).chmod(0o644)
    tmp_path.chmod(0o755)
    # As if it had been killed: another process has the files as they are.
    state._unlock()
    later = State(tmp_path)
    assert set(modes(tmp_path).values()) == {0o600}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert later.runs() == [with_token]
    later.close()
    state.close()


def test_a_short_token_is_refused_and_not_shown():
    with pytest.raises(SecretError, match="the token has 5 characters and needs 16; `openssl rand -hex 32` makes one"):
        secret_file.check_token("guess")
    assert secret_file.check_token("0123456789abcdef") == "0123456789abcdef"
    for weak in ("x" * 16, " " * 16, "0123456789 abcdef"):
        with pytest.raises(secret_file.SecretError, match="blanks, or fewer than 6 different"):
            secret_file.check_token(weak)


def test_a_file_that_others_may_use_is_said_to_be_so_with_the_way_out(tmp_path):
    path = tmp_path / "token"
    path.touch(mode=0o600)
    assert secret_file.open_to_others(path) is None
    for mode in (0o640, 0o604, 0o666):
        path.chmod(mode)
        assert secret_file.open_to_others(path) == f"has mode {mode:04o}, so that others may use it; `chmod 600 {path}`"
