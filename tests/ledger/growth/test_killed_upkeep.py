"""Upkeep that is killed at any step leaves a ledger that `verify`, the first to read it, finds sound."""

import signal

import pytest

from rose.ledger.files import catalog, layout
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from tests import programs
from tests.ledger.conftest import close_epochs, copied
from tests.ledger.evidence import ledgers
from tests.long_form import usual

#: Kills itself before a step that changes a file. Without such a step it ends with the number of steps as output.
PROGRAM = """
import os, signal, sys
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.ledger import Ledger
ledger, at, steps = Ledger(sys.argv[1]), int(sys.argv[2]), []
def before(name, arguments):
    changes = name in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")
    if changes or name == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        steps.append(name)
        if len(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(before)
"""
ACTS = {
    "compaction": "compaction.compact(ledger, grace_s=0)",
    "roll-up": "rollup.roll_up(ledger, grace_s=0)",
    "archive": "archive.archive(ledger, older_than_days=1, to=f'{ledger.folder}-away', delete=True, grace_s=0)",
}


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    root = layout.create(tmp_path_factory.mktemp("grown") / "ledger")
    for _ in range(2):
        for writer in ("a", "b"):
            ledgers.write(root, writer, named=True)
        close_epochs(root)
        compaction.compact(Ledger(root), grace_s=3600)
        rollup.roll_up(Ledger(root), grace_s=3600)
    ledgers.write(root, "a", named=True)
    close_epochs(root)
    catalog.connect(root).close()
    assert Ledger(root).verify().problems == []
    return root


@pytest.mark.parametrize("act", ACTS)
def test_a_kill_before_any_step_is_no_tampering(grown, tmp_path, act):
    ended, step = None, 1
    while ended != 0:
        root = copied(grown, tmp_path / f"ledger-{step}")
        catalog.connect(root).close()
        ended, _ = programs.run(f"{PROGRAM}\n{ACTS[act]}", root, step)
        assert ended in (0, -signal.SIGKILL)
        assert (step, Ledger(root).verify().problems) == (step, [])
        step += usual(67, long=1)
    assert step > 10
