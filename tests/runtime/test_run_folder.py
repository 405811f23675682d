"""Folders of runs, left by real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from rose.errors import UserError
from rose.runtime import run_folder
from rose.runtime.engines.leftovers import Segments
from tests.runtime.engines.test_leftovers import MAKES, age


@contextmanager
def run(folder, logs):
    """A process that has the folder of a run."""
    script = (
        "import sys, time; from pathlib import Path; from rose.runtime import run_folder\n"
        f"owner = run_folder.claim(Path({str(folder)!r}), Path({str(logs)!r}))\n"
        "print('claimed', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "claimed\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_folder_is_removed_once_its_run_was_killed(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    dead, live = tmp_path / "rose-dead", tmp_path / "rose-live"
    with run(live, logs), run(dead, logs) as process:
        (dead / "gpu-0").mkdir()
        (dead / "gpu-0" / "page").touch()
        assert list(run_folder.remove_orphans(tmp_path)) == []
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert list(run_folder.remove_orphans(tmp_path)) == [dead]
        assert not dead.exists()
        assert live.exists()
        assert list(run_folder.remove_orphans(tmp_path)) == []


def test_what_is_not_known_to_be_a_run_s_stays(tmp_path):
    for name in ("rose-pages", "rose-older", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "owner").touch()
    (tmp_path / "rose-link").symlink_to(tmp_path / "other")
    assert list(run_folder.remove_orphans(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_of_a_run_without_a_lock_is_removed_once_nobody_has_a_file_of_it(tmp_path):
    """Of a version that knew no lock, or one whose removal was cut short."""
    folder = tmp_path / "rose-fleet-20260601T120000Z"
    page = folder / "gpu-0" / "page"
    page.parent.mkdir(parents=True)
    page.touch()
    assert list(run_folder.remove_orphans(tmp_path)) == [], "it may be a run that begins"
    age(page)
    age(folder)
    with page.open("rb"):
        assert list(run_folder.remove_orphans(tmp_path)) == []
    age(page)
    assert list(run_folder.remove_orphans(tmp_path)) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_keeps_its_lock_until_everything_else_is_gone(tmp_path):
    folder = tmp_path / "rose-a"
    with run_folder.claim(folder, tmp_path):
        stays = folder / "gpu-0"
        stays.mkdir()
        (stays / "page").touch()
        os.mkfifo(folder / "socket")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_folder.shutil, "rmtree", refuse)
            with pytest.raises(OSError, match="gpu-0"):
                run_folder.remove(folder)
        assert (folder / "owner").exists()
        run_folder.remove(folder)
    assert not folder.exists()


def refuse(path):
    raise OSError(f"{path} is not removed")


def test_what_the_engines_of_a_killed_run_left_goes_with_its_folder(tmp_path):

    maker = subprocess.Popen(
        [sys.executable, "-c", MAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    made = [Path(name) for name in maker.stdout.readline().split()]
    Segments(tmp_path / "gpu-0.1-rollout.log").note(maker.pid)
    os.killpg(maker.pid, signal.SIGKILL)
    maker.wait()
    Path("/dev/shm/sglang_other.shm").unlink()
    with run(tmp_path / "rose-dead", tmp_path):
        pass
    while not list(run_folder.remove_orphans(tmp_path)):
        time.sleep(0.05)
    assert [path for path in made if path.exists()] == []


def test_two_runs_of_one_name_are_not_one(tmp_path):
    with run_folder.claim(tmp_path / "rose-a", tmp_path), pytest.raises(UserError, match="start this one again"):
        run_folder.claim(tmp_path / "rose-a", tmp_path)
