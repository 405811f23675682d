"""What other users may put where a private folder or file is looked for, and what this user's own folder may be."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from rose import private_folder
from rose.private_folder import NotPrivateError
from tests import strangers


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_folder_is_made_for_its_user_alone_and_made_again_is_the_same(tmp_path):
    folder = private_folder.make(tmp_path / "a" / "b")
    (folder / "file").touch()
    assert private_folder.make(folder) == folder
    assert (mode(folder), private_folder.is_private(folder)) == (0o700, True)
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_an_own_folder_that_others_read_is_closed_and_one_that_others_write_to_is_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o755)
    assert not private_folder.is_private(folder)
    private_folder.make(folder)
    assert mode(folder) == 0o700
    for open_to_others in (0o770, 0o707):
        folder.chmod(open_to_others)
        with pytest.raises(NotPrivateError, match=f"folder has mode {open_to_others:04o}: other users may use it"):
            private_folder.make(folder)


def test_a_link_is_no_folder(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(private_folder.make(tmp_path / "folder"))
    with pytest.raises(NotPrivateError, match="link is a link: remove it"):
        private_folder.make(link)
    assert not private_folder.is_private(link)


def test_a_file_is_made_once_and_opened_by_its_one_name(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="file"):
        private_folder.open_file(path)
    for _ in range(2):
        with os.fdopen(private_folder.open_file(path, os.O_CREAT), "a") as file:
            file.write("a")
    assert (path.read_text(), mode(path)) == ("aa", 0o600)
    (tmp_path / "other").hardlink_to(path)
    with pytest.raises(NotPrivateError, match="not one regular file with one name"):
        private_folder.open_file(path)


def test_what_is_no_private_file_is_refused_and_left_as_it_was(tmp_path):
    target, link, public, pipe = (tmp_path / name for name in ("target", "link", "public", "pipe"))
    target.touch(0o600)
    target.write_text("precious")
    link.symlink_to(target)
    public.touch()
    public.chmod(0o644)
    os.mkfifo(pipe, 0o600)
    for path, why in ((link, "is a link"), (public, "has mode 0644"), (pipe, "not one regular file")):
        with pytest.raises(NotPrivateError, match=f"{path.name} {why}|{path.name} is {why}"):
            private_folder.open_file(path, os.O_CREAT)
    assert target.read_text() == "precious"
    tmp_path.chmod(0o755)
    with pytest.raises(NotPrivateError, match="has mode 0755"):
        private_folder.open_file(target)


def test_a_linked_folder_has_a_name_that_nobody_can_guess_and_keeps_it(tmp_path):
    homes = [tmp_path / name for name in ("one", "two")]
    folders = []
    for home in homes:
        home.mkdir()
        folders.append(private_folder.make_linked(home / "link", tmp_path, "rose-"))
        assert private_folder.make_linked(home / "link", tmp_path, "rose-") == folders[-1]
    assert folders[0] != folders[1]
    folders[0].rmdir()  # as a boot does
    assert private_folder.make_linked(homes[0] / "link", tmp_path, "rose-") == folders[0]


def test_processes_that_come_at_once_have_one_linked_folder(tmp_path):
    ready, folders = threading.Barrier(8), []

    def make():
        ready.wait()
        folders.append(private_folder.make_linked(tmp_path / "link", tmp_path, "rose-"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(folders), len(set(folders))) == (8, 1)
    assert [path for path in tmp_path.iterdir() if not path.is_symlink()] == [folders[0]]


@strangers.needs_another_user
@pytest.mark.parametrize("trap", ["mkdir -m 0700 {}", "mkdir -m 0777 {}", "ln -s {}-elsewhere {}", "touch {}"])
def test_what_another_user_made_in_the_place_of_a_folder_is_refused_and_a_linked_one_is_elsewhere(tmp_path, trap):
    with strangers.everybodys_folder() as home:
        before = private_folder.make_linked(tmp_path / "link", home, "rose-")
        before.rmdir()
        assert strangers.succeeds(trap.format(before, before))
        with pytest.raises(OSError, match=r"belongs to user|is a link|Not a directory"):
            private_folder.make(before)
        folder = private_folder.make_linked(tmp_path / "link", home, "rose-")
        assert folder != before
        assert private_folder.is_private(folder)
        assert private_folder.make_linked(tmp_path / "link", home, "rose-") == folder


@strangers.needs_another_user
def test_a_file_of_another_user_is_opened_only_where_that_user_is_named(tmp_path):
    path = private_folder.make(tmp_path / "folder") / "file"
    path.touch(0o600)
    for owned in (path, path.parent):
        os.chown(owned, strangers.UID, strangers.UID)
        with pytest.raises(NotPrivateError, match=f"belongs to user {strangers.UID}, and not to user 0"):
            private_folder.open_file(path)
    os.close(private_folder.open_file(path, users=[strangers.UID]))
