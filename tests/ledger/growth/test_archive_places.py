import shutil
import signal
import uuid

import pytest

from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth.archive import archive, restore
from rose.ledger.ledger import Ledger
from tests import programs
from tests.ledger.growth.conftest import count_by_engines, seqs, states
from tests.long_form import usual

#: Archives as `rose jobs run archive --delete` does, and is killed just before one of the calls by which it renames or
#: removes a file of a part or of its copy.
_KILLED = """
import os, signal, sys
from rose.ledger.growth import archive
root, to, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
def hook(event, args):
    global left
    if event in ("os.rename", "os.remove") and {"compacted", "archived"} & set(str(args[0]).split("/")):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
archive.archive(root, older_than_days=1, to=to, delete=True, grace_s=0)
print(int(sys.argv[3]) - left)
"""
#: Of each of the three parts the file is copied, its manifest is copied, and the manifest is moved; each copy is also
#: removed as a temporary file. Then the files are removed.
_KILL_POINTS = 18


def test_a_place_that_will_not_do_is_refused_and_nothing_leaves(root):
    for to, says in (
        ("{root}", "lies in the ledger"),
        ("{root}/archive", "lies in the ledger"),
        ("/proc/no/such", "cannot archive to /proc/no/such: .*; restore it, or open it at its new place"),
        ("nosuchprotocol://x", "cannot open"),
        (f"memory://{uuid.uuid4().hex}", "does not outlive this process"),
    ):
        with pytest.raises(LedgerError, match=says):
            archive(Ledger(root), older_than_days=1, to=to.format(root=root), delete=True, grace_s=0)
    assert seqs(root) == list(range(12))


def _kill_archiving(archivable_made, folder, at):
    root, away = shutil.copytree(archivable_made, folder / f"ledger-{at}"), folder / f"away-{at}"
    return root, away, *programs.run(_KILLED, root, away, at)


@pytest.mark.long
def test_killed_at_any_point_nothing_is_lost_and_the_next_one_finishes(archivable_made, tmp_path):
    points = usual((1, 6, 10, _KILL_POINTS + 1), long=(*range(1, _KILL_POINTS), _KILL_POINTS + 1))
    killed = [_kill_archiving(archivable_made, tmp_path, at) for at in points]
    assert killed.pop()[2:] == (0, f"{_KILL_POINTS}\n")
    for root, away, returncode, _ in killed:
        assert returncode == -signal.SIGKILL
        kept = seqs(root)
        assert Ledger(root).verify().problems == [], root
        for part in layout.chain(root, "w"):
            assert part.state != "archived" or (away / f"{part.stem}.parquet").exists(), root
        assert kept == list(range(kept[0], 12)), root
        archive(Ledger(root), older_than_days=1, to=str(away), delete=True, grace_s=0)
        assert not list(root.glob("compacted/w/*"))
        assert states(root)[:3] == ["archived"] * 3
        assert Ledger(root).verify().problems == [], root
        assert count_by_engines(str(away), {}) == {seqs(root)[0]}


def test_to_and_from_s3(root, s3):
    url, options = "s3://rose-archive/ledger", s3.storage_options
    s3.mkdir("rose-archive")
    copied = archive(Ledger(root), older_than_days=1, to=url, delete=False)
    done = archive(Ledger(root), older_than_days=1, to=url, delete=True, grace_s=0)
    assert (copied.events, done.left, done.url) == (done.events, 3, url)
    assert not list(root.glob("compacted/w/*"))
    assert count_by_engines(url, options) == {done.events}
    assert Ledger(root).verify().problems == []
    assert restore(Ledger(root), url).events == done.events
    assert seqs(root) == list(range(12))
    assert Ledger(root).verify().problems == []
    with pytest.raises(LedgerError, match="s3://no-such-bucket/x/compacted/w/"):
        archive(Ledger(root), older_than_days=1, to="s3://no-such-bucket/x", delete=True)
