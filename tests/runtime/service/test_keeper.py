"""What of a fleet run outlives its being put down, and that it can be put down whatever fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rose.errors import UserError
from rose.ledger import catalog
from rose.runtime.errors import DeploymentError
from rose.runtime.scheduling.runs.state import State
from rose.runtime.service import keeper as keeper_module
from rose.runtime.service import memory
from rose.runtime.service.console import ControllerClient
from rose.runtime.service.keeper import Keeper
from rose.runtime.service.up import up
from tests.runtime.service.fleet_here import MODEL, TOKEN, Here, Part, fleet, started, stopped, until
from tests.test_config import MINIMAL

TWO_HOSTS = """
[[host]]
name = "one"
address = "127.0.0.1"
[[host]]
name = "other"
address = "127.0.0.2"
""" + MINIMAL.replace('id = "a"', 'id = "a"\nhost = "one"').replace('id = "b"', 'id = "b"\nhost = "other"')
RUN_EVENTS = "SELECT action, reason, fleet_run_id FROM event WHERE kind = 'run' AND run_id = '{}' ORDER BY seq"


def call(keeper: Keeper, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        keeper.state().url + path,
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def open_run(keeper: Keeper) -> dict[str, Any]:
    return call(keeper, "POST", "/runs", {"name": "grpo", "model": MODEL, "expires_s": 3600})


def console(keeper: Keeper) -> ControllerClient:
    return ControllerClient(keeper.state().url, TOKEN)


def recorded(folder: Path, run_id: str) -> list[tuple[Any, ...]]:
    with catalog.connect(folder / "ledger") as connection:
        return connection.execute(RUN_EVENTS.format(run_id)).fetchall()


def test_a_fleet_run_that_is_kept_goes_on_with_its_runs_and_drains_and_a_changed_file(tmp_path, monkeypatch):
    first = started(fleet(tmp_path), monkeypatch)
    run, run_id = open_run(first), first.state().run_id
    console(first).drain("b", "new driver")
    stopped(first, keep_runs=True)

    second = started(fleet(tmp_path, 'tags = { project = "lake" }'), monkeypatch)
    assert second.state().run_id == run_id
    assert second.state().url != first.state().url  # As the file says now.
    (known,) = console(second).runs()
    assert (known["run_id"], known["state"], known["fence"]) == (run["run_id"], "open", 1)
    call(second, "POST", f"/runs/{run['run_id']}/versions", {"fence": 1, "version": 0, "url": "http://store"})
    with pytest.raises(UserError, match="there is no device 'c'"):
        console(second).undrain("c")
    console(second).undrain("b")
    stopped(second)
    reason = "goes on with a changed fleet file"
    assert recorded(tmp_path, run_id) == [("started", None, None), ("started", reason, None), ("ended", None, None)]


def test_a_fleet_run_that_ends_closes_its_runs_on_record_and_its_drains_outlive_it(tmp_path, monkeypatch):
    first = started(fleet(tmp_path), monkeypatch)
    run, run_id = open_run(first), first.state().run_id
    console(first).drain("b", "new driver")
    stopped(first)
    assert [part.doing for part in first.state().parts] == ["stopped", "stopped"]
    assert recorded(tmp_path, run["run_id"]) == [("started", None, run_id), ("ended", "the fleet was ended", run_id)]
    assert recorded(tmp_path, run_id)[-1] == ("ended", None, None)

    second = started(fleet(tmp_path), monkeypatch)
    assert second.state().run_id != run_id
    assert console(second).runs() == []
    stopped(second)
    third = started(fleet(tmp_path), monkeypatch)
    console(third).undrain("b")
    stopped(third)


def test_of_the_state_of_a_fleet_run_that_ended_nothing_is_left(tmp_path, monkeypatch):
    """It has the tokens of trainers' stores."""
    keeper = started(fleet(tmp_path), monkeypatch)
    run, folder = open_run(keeper), tmp_path / "state" / "f"
    version = {"fence": 1, "version": 0, "url": "http://store", "token": "of-the-store"}
    call(keeper, "POST", f"/runs/{run['run_id']}/versions", version)
    console(keeper).drain("b", "new driver")
    assert (folder / keeper.state().run_id).exists()
    stopped(keeper)
    assert not (folder / keeper.state().run_id).exists()
    assert [path for path in folder.rglob("*") if path.is_file() and b"of-the-store" in path.read_bytes()] == []


@pytest.mark.parametrize(
    "change", [{"model": "another"}, pytest.param({"ledger": "elsewhere"}, marks=pytest.mark.long)]
)
def test_what_a_fleet_run_that_is_kept_stands_on_may_not_change(tmp_path, monkeypatch, change):
    first = started(fleet(tmp_path), monkeypatch)
    stopped(first, keep_runs=True)
    (name,) = change
    changed = fleet(tmp_path, **change)
    with pytest.raises(
        UserError, match=f"{name}.* is .*{change[name]}'.* fleet run {first.state().run_id} goes on with"
    ):
        up(changed, None, print)
    for keep_runs in (True, False):
        second = keeper_module.Keeper(changed, "127.0.0.1")
        until(lambda keeper=second: bool(keeper.state().parts))
        assert "Put that back" in second.state().parts[0].doing
        stopped(second, keep_runs=keep_runs)
        # What it could not begin it did not end.
        remembered = memory.read(tmp_path / "state" / "f")
        assert remembered is not None
        assert (remembered.run_id, remembered.kept) == (first.state().run_id, True)
        assert (
            "Put that back" in {part.name: part.doing for part in second.state().parts}["the memory of the fleet run"]
        )


@pytest.mark.long
def test_the_controller_is_started_anew_and_knows_its_runs(tmp_path, monkeypatch):
    keeper = started(fleet(tmp_path), monkeypatch)
    run = open_run(keeper)
    before = keeper._fabric.actors["controller"]._body
    keeper.restart("controller")
    until(lambda: keeper.state().ready)
    assert keeper._fabric.actors["controller"]._body is not before
    call(keeper, "POST", f"/runs/{run['run_id']}/renew", {"fence": 1})
    stopped(keeper)


def test_it_ends_though_its_ledger_refuses(tmp_path, monkeypatch):
    keeper = started(fleet(tmp_path), monkeypatch)
    run = open_run(keeper)
    shutil.rmtree(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("no folder")
    stopped(keeper)
    failed = {part.name: part.doing for part in keeper.state().parts if part.doing != "stopped"}
    assert set(failed) >= {"the RL runs", "the event of the end"}
    assert "not ended in order: LedgerError" in failed["the event of the end"]
    folder = tmp_path / "state" / "f"
    assert memory.read(folder) is None
    # What the ledger has not heard stays.
    state = State(folder / keeper.state().run_id)
    _, last = state.due()[-1]
    assert (last["run_id"], last["action"]) == (run["run_id"], "ended")
    state.close()
    # The next run of the fleet tells it.
    (tmp_path / "ledger").unlink()
    former = keeper.state().run_id
    stopped(started(fleet(tmp_path), monkeypatch))
    ended = "SELECT run_id, fleet_run_id FROM event WHERE kind = 'run' AND action = 'ended' AND run_id = ?"
    with catalog.connect(tmp_path / "ledger") as ledger:
        assert ledger.execute(ended, [run["run_id"]]).fetchall() == [(run["run_id"], former)]
    assert not (folder / former).exists()


def test_what_a_host_did_not_end_in_order_is_named(tmp_path, monkeypatch):
    keeper = started(fleet(tmp_path), monkeypatch)
    monkeypatch.setattr(Part, "undone", ("its own serving: not ended in order: it hangs",))
    stopped(keeper)
    doing = {part.name: part.doing for part in keeper.state().parts}
    assert doing["host local"] == "stopped, but for its own serving: not ended in order: it hangs"


def test_hosts_that_hang_are_waited_for_side_by_side(tmp_path, monkeypatch):
    keeper = started(fleet(tmp_path, TWO_HOSTS), monkeypatch)
    monkeypatch.setattr(keeper_module, "_STOP_TIMEOUT_S", 1.0)
    let_go = threading.Event()
    monkeypatch.setattr(Part, "let_go", let_go)
    monkeypatch.setattr(keeper_module, "_STOP_REST_TIMEOUT_S", 0.1)
    keeper._fabric.timeouts_s.clear()
    stopped(keeper)
    let_go.set()
    # Of the hosts, then of the controller, which is asked once the hosts are gone.
    hosts, rest = keeper._fabric.timeouts_s[-3:-1], keeper._fabric.timeouts_s[-1:]
    assert sum(hosts) <= 1.0
    assert sum(rest) <= 0.1
    doing = {part.name: part.doing for part in keeper.state().parts}
    assert "was ended before it had stopped in order" in doing["host one"]
    assert "was ended before it had stopped in order" in doing["host other"]
    assert all(actor.ended for actor in keeper._fabric.actors.values())


def test_a_part_that_does_not_stop_in_time_is_started_anew_and_that_is_said(tmp_path, monkeypatch):
    keeper = started(fleet(tmp_path), monkeypatch)
    monkeypatch.setattr(keeper_module, "_STOP_TIMEOUT_S", 0.1)
    let_go = threading.Event()
    monkeypatch.setattr(Part, "let_go", let_go)
    host = keeper._fabric.actors["host local"]
    before = host._body
    ended = "host local was ended before it had stopped in order, and is started anew: it did not answer"
    with pytest.raises(DeploymentError, match=ended):
        keeper.restart("host local")
    assert host._body is not before
    let_go.set()
    stopped(keeper)


def test_nothing_is_started_while_nothing_can_be_archived_to_where_the_file_says(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper_module, "Fabric", Here)
    table = f'[archive]\nto = "{tmp_path}/ledger/cold"\nafter_days = 30\n'
    keeper = Keeper(fleet(tmp_path, TWO_HOSTS + table), "127.0.0.1")
    until(lambda: bool(keeper.state().parts))
    (part,) = keeper.state().parts
    assert part.doing.startswith(f"archive.to '{tmp_path}/ledger/cold': ")
    assert "lies in the ledger" in part.doing
    assert keeper._fabric.actors == {}
    stopped(keeper)


def test_a_fleet_whose_trace_is_gone_ends_on_record(tmp_path, monkeypatch):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,12,3\n")
    made = fleet(tmp_path)
    made = made.model_copy(update={"traffic": made.traffic.model_copy(update={"trace": str(trace)})})
    keeper = started(made, monkeypatch)
    run_id = keeper.state().run_id
    trace.unlink()
    stopped(keeper)
    with catalog.connect(tmp_path / "ledger") as connection:
        query = "SELECT status, trace, trace_keep_share FROM run WHERE run_id = ?"
        assert connection.execute(query, [run_id]).fetchall() == [("ended", "trace", 1.0)]


def test_a_part_that_is_being_started_anew_when_the_fleet_is_put_down_ends_with_it(tmp_path, monkeypatch):
    """Begun anew, it would grant leases, and be ended before it had ended them."""
    keeper = started(fleet(tmp_path), monkeypatch)
    let_go = threading.Event()
    monkeypatch.setattr(Part, "let_go", let_go)
    before = keeper._fabric.actors["host local"]._body
    restarting = threading.Thread(target=keeper.restart, args=["host local"])
    restarting.start()
    until(lambda: keeper._parts[-1].restarts)
    keeper.stop()
    until(lambda: keeper._ending)
    let_go.set()
    restarting.join()
    until(lambda: keeper.state().stopped)
    assert keeper._fabric.actors["host local"]._body is before
    assert {part.name: part.doing for part in keeper.state().parts}["host local"] == "stopped"


def test_a_part_that_the_fleet_does_not_have_yet_is_named(tmp_path, monkeypatch):
    """Whoever asks may have a fleet file that is newer than the keeper's."""
    keeper = started(fleet(tmp_path), monkeypatch)
    with pytest.raises(DeploymentError, match=r"has no host rack-3: .* `rose down --keep-runs` and `rose up`"):
        keeper.restart("host rack-3")
    stopped(keeper)


@pytest.mark.parametrize("keep_runs", [True, False])
def test_one_that_is_started_again_once_all_is_over_begins_nothing(tmp_path, monkeypatch, keep_runs):
    first = started(fleet(tmp_path), monkeypatch, start_id="monday")
    stopped(first, keep_runs=keep_runs)
    stopped(first)  # Whoever asks twice changes nothing.
    again = keeper_module.Keeper(fleet(tmp_path), "127.0.0.1", start_id="monday")
    until(lambda: again.state().stopped)
    assert again.state().parts == []
    stopped(again)
    remembered = memory.read(tmp_path / "state" / "f")
    assert (remembered is not None and remembered.kept) == keep_runs
    stopped(started(fleet(tmp_path), monkeypatch, start_id="tuesday"))


def host_tokens(keeper) -> dict[str, tuple[str, tuple[str, ...]]]:
    """What the controller is told of the other hosts: the token of each, and the names that it has and had."""
    return keeper._fabric.actors["controller"]._body._plan.host_tokens


@pytest.mark.parametrize("keep_runs", [True, False])
def test_a_host_that_the_file_has_no_more_may_send_no_events_and_comes_back_with_another_token(
    tmp_path, monkeypatch, keep_runs
):
    def told(extra: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        keeper = started(fleet(tmp_path, extra), monkeypatch)
        stopped(keeper, keep_runs=keep_runs)
        return host_tokens(keeper)

    first, third, again = (told(TWO_HOSTS.replace('"other"', f'"{name}"')) for name in ("other", "third", "other"))
    assert (set(first), set(third), set(again)) == ({"other"}, {"third"}, {"other"})
    assert first["other"][0] != again["other"][0]


def test_a_host_with_another_name_may_send_what_it_has_of_its_former_ones(tmp_path, monkeypatch):
    def names(extra: str) -> dict[str, tuple[str, ...]]:
        keeper = started(fleet(tmp_path, extra), monkeypatch)
        stopped(keeper, keep_runs=True)
        return {host: names for host, (_, names) in host_tokens(keeper).items()}

    names(TWO_HOSTS)
    for name, expected in (("third", ("third", "other")), ("fourth", ("fourth", "other", "third"))):
        assert names(TWO_HOSTS.replace('"other"', f'"{name}"')) == {name: expected}
    # Another host is no former one, and neither is one that has that name now.
    apart = TWO_HOSTS.replace('"other"', '"third"').replace("127.0.0.2", "127.0.0.3").replace('id = "b"', 'id = "c"')
    assert names(apart) == {"third": ("third",)}


def test_one_that_cannot_begin_ends_what_another_began(tmp_path, monkeypatch):
    first = started(fleet(tmp_path), monkeypatch)
    run = open_run(first)
    monkeypatch.setattr(keeper_module, "Fabric", lambda _: first._fabric)
    # As if its process was gone, and the ledger still had its writer.
    first._memory.unlock()
    second = keeper_module.Keeper(fleet(tmp_path), "127.0.0.1")
    until(lambda: bool(second.state().parts))
    assert second.state().parts[0].name == "keeper"
    stopped(second)
    assert all(actor.ended for actor in first._fabric.actors.values())
    failed = {part.name: part.doing for part in second.state().parts if part.doing != "stopped"}
    assert "they are open in it" in failed["the RL runs"]
    assert recorded(tmp_path, run["run_id"])[-1][0] == "started"
    stopped(first)


def test_a_second_keeper_of_a_fleet_names_the_one_that_has_it_and_begins_and_ends_nothing(tmp_path, monkeypatch):
    first = started(fleet(tmp_path), monkeypatch)
    file = tmp_path / "state" / "f" / memory.FILE
    before = file.read_text()
    # On another Ray, where nothing of the fleet is.
    second = keeper_module.Keeper(fleet(tmp_path), "127.0.0.1", ray_address="10.0.0.9:6379")
    until(lambda: bool(second.state().parts))
    has_it = f"another keeper of fleet 'f' has {file.parent}: process {os.getpid()} on a Ray of this host's own"
    assert [part.doing.startswith(has_it) for part in second.state().parts] == [True]
    stopped(second)
    assert [part.doing.startswith(f"ended nothing: {has_it}") for part in second.state().parts] == [True]
    assert file.read_text() == before
    assert not any(actor.ended for actor in first._fabric.actors.values())
    stopped(first)
    # It is anybody's then.
    stopped(started(fleet(tmp_path), monkeypatch))


def test_a_kept_fleet_run_is_ended_by_a_keeper_that_had_no_time_to_begin(tmp_path, monkeypatch):
    first = started(fleet(tmp_path), monkeypatch)
    run, run_id = open_run(first), first.state().run_id
    stopped(first, keep_runs=True)
    monkeypatch.setattr(keeper_module.Keeper, "_is_over", lambda _: True)
    second = keeper_module.Keeper(fleet(tmp_path), "127.0.0.1")
    until(lambda: second.state().stopped)
    assert recorded(tmp_path, run["run_id"])[-1][0] == recorded(tmp_path, run_id)[-1][0] == "ended"
    assert memory.read(tmp_path / "state" / "f") is None
    assert not (tmp_path / "state" / "f" / run_id / "turns").exists()


def test_a_part_that_was_told_to_stop_and_not_started_anew_is(tmp_path, monkeypatch):
    keeper = started(fleet(tmp_path), monkeypatch)
    before = keeper._fabric.actors["controller"]._body
    before.stop()
    until(lambda: keeper._fabric.actors["controller"]._body is not before)
    until(lambda: keeper.state().ready)
    stopped(keeper)


def test_a_fleet_ends_with_a_process_that_was_gone_before_it_began(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper_module, "Fabric", Here)
    ended: list[Path] = []
    monkeypatch.setattr(keeper_module.local_ray, "stop_later", ended.append)
    gone = subprocess.Popen(["true"])
    gone.wait()
    keeper = keeper_module.Keeper(fleet(tmp_path), "127.0.0.1", lives_with=gone.pid)
    until(lambda: keeper.state().stopped)
    until(lambda: ended == [tmp_path / "state" / "f"])
