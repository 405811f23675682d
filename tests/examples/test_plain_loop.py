"""The example against a real controller and its ledger."""

import runpy
from pathlib import Path

from rose.ledger.files import catalog, layout
from rose.ledger.writer import LedgerWriter
from tests.client.fleet import Engine, Fetching, fleet

PROGRAM = Path(__file__).parents[2] / "examples" / "plain_loop.py"


def test_the_plain_loop_trains_on_a_fleet(tmp_path, tiny_policy, monkeypatch, capsys):
    monkeypatch.setenv("ROSE_TOKEN", "token-of-the-tests")
    ledger, fetching = tmp_path / "ledger", Fetching(tmp_path / "staging")
    layout.create(ledger)
    with (
        LedgerWriter.open(ledger, "controller", "fleet") as writer,
        fleet(tmp_path / "state", Engine(fetch=fetching), writer=writer, token="token-of-the-tests") as there,
    ):
        runpy.run_path(str(PROGRAM))["main"](there.url, tiny_policy, 2)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["step 0", "step 1"]
    assert [version for _, version, _ in fetching.fetched][:2] == [0, 1]
    with catalog.connect(ledger) as connection:
        steps = connection.execute("SELECT step, policy_version, trajectories FROM step ORDER BY step").fetchall()
        (tags,) = connection.execute("SELECT tags_json FROM run").fetchone()
        (turns,) = connection.execute("SELECT count(DISTINCT trajectory_id) FROM turn").fetchone()
        (verdicts,) = connection.execute("SELECT count(DISTINCT trajectory_id) FROM verdict").fetchone()
    assert steps == [(0, 1, 24), (1, 2, 24)]
    assert (turns, verdicts) == (48, 48)
    assert '"research"' in tags


def test_it_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60
