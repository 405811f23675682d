import json
import shutil
import threading
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rose.config.example import demo
from rose.errors import UserError
from rose.runtime import places, preflight
from rose.runtime.errors import DeploymentError
from rose.runtime.service import local_ray, memory, process, up
from rose.runtime.service.console import ControllerClient
from rose.runtime.service.demo import run as run_demo
from rose.runtime.service.memory import FleetMemory
from tests.ledger.conftest import ask
from tests.runtime.service.fleet_here import MODEL, TOKEN, Here, Part, cluster, fleet, started, stopped
from tests.test_config import MINIMAL

__all__ = ["cluster"]

TWO_HOSTS = """
[[host]]
name = "one"
address = "127.0.0.1"
[[host]]
name = "other"
address = "127.0.0.2"
""" + MINIMAL.replace('id = "a"', 'id = "a"\nhost = "one"').replace('id = "b"', 'id = "b"\nhost = "other"')
RUN_EVENTS = "SELECT action, reason, fleet_run_id FROM event WHERE kind = 'run' AND run_id = '{}' ORDER BY seq"


def call(begun: up.Fleet, method: str, path: str, body: dict[str, Any], token: str = TOKEN) -> dict[str, Any]:
    request = urllib.request.Request(
        begun.remembered.url + path,
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def open_run(begun: up.Fleet) -> dict[str, Any]:
    return call(begun, "POST", "/runs", {"name": "grpo", "model": MODEL, "expires_s": 3600})


def console(begun: up.Fleet) -> ControllerClient:
    return ControllerClient(begun.remembered.url, TOKEN)


def runs(begun: up.Fleet) -> list[dict[str, Any]]:
    return console(begun).status()["runs"]


def recorded(folder: Path, run_id: str) -> list[tuple[Any, ...]]:
    return ask(folder / "ledger", RUN_EVENTS.format(run_id))


def remembered(folder: Path) -> memory.Remembered | None:
    return memory.read(folder / "state" / "f")


def test_a_fleet_run_that_is_kept_goes_on_with_its_runs_and_drains_and_a_changed_file(tmp_path, cluster):
    config = fleet(tmp_path)
    first = started(config)
    run, run_id = open_run(first), first.remembered.run_id
    console(first).drain("b", "new driver")
    stopped(config, keep_runs=True)

    changed = fleet(tmp_path, 'tags = { project = "lake" }')
    second = started(changed)
    assert second.remembered.run_id == run_id
    assert second.remembered.url != first.remembered.url  # As the file says now.
    (known,) = runs(second)
    assert (known["run_id"], known["state"], known["fence"]) == (run["run_id"], "open", 1)
    call(second, "POST", f"/runs/{run['run_id']}/versions", {"fence": 1, "version": 0, "url": "http://store"})
    with pytest.raises(UserError, match="unknown device 'c'"):
        console(second).undrain("c")
    console(second).undrain("b")
    stopped(changed)
    reason = "goes on with a changed fleet file"
    assert recorded(tmp_path, run_id) == [("started", None, None), ("started", reason, None), ("ended", None, None)]


def test_a_fleet_run_that_ends_closes_its_runs_on_record_and_leaves_its_drains_and_no_token(tmp_path, cluster):
    config, folder = fleet(tmp_path), tmp_path / "state" / "f"
    first = started(config)
    run, run_id = open_run(first), first.remembered.run_id
    version = {"fence": 1, "version": 0, "url": "http://store", "token": "of-the-store"}
    call(first, "POST", f"/runs/{run['run_id']}/versions", version)
    console(first).drain("b", "new driver")
    assert stopped(config)[1:3] == ["host local stopped", "controller stopped"]
    assert recorded(tmp_path, run["run_id"]) == [("started", None, run_id), ("ended", "the fleet was ended", run_id)]
    assert recorded(tmp_path, run_id)[-1] == ("ended", None, None)
    assert [path for path in folder.rglob("*") if path.is_file() and b"of-the-store" in path.read_bytes()] == []

    second = started(config)
    assert second.remembered.run_id != run_id
    assert runs(second) == []
    stopped(config)
    console(started(config)).undrain("b")
    stopped(config)


def terms_of(begun: up.Fleet, device_id: str) -> dict[str, Any]:
    heartbeat = {"device_id": device_id, "engines": [], "host": "local"}
    return call(begun, "POST", "/heartbeat", heartbeat, begun.remembered.agent_token)["terms"]


def test_changed_budgets_are_taken_over_on_record_and_outlive_the_controller(tmp_path, cluster):
    before = fleet(tmp_path)
    begun = started(before)
    assert terms_of(begun, "a")["ttft_budget_ms"] == 500
    assert terms_of(begun, "b") is None, "a device that serves nothing"
    serving = before.serving.model_copy(update={"ttft_budget_ms": 800.0})
    coserving = before.coserving.model_copy(update={"stretch": 1.5})
    changed = before.model_copy(update={"serving": serving, "coserving": coserving})
    expected = ["coserving.stretch: 1.25 -> 1.5", "serving.ttft_budget_ms: 500.0 -> 800.0"]
    assert sorted(up.reload(changed, print)) == expected
    assert up.reload(changed, print) == []
    for _ in range(2):
        terms = terms_of(begun, "a")
        assert (terms["ttft_budget_ms"], terms["coserving"]["stretch"]) == (800, 1.5)
        up.restart(changed, Here.address, "controller", print)

    file = tmp_path / "state" / "f" / memory.FILE
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    console(begun).reload()
    assert terms_of(begun, "a")["ttft_budget_ms"] == 500, "a damaged memory stops no controller"
    file.write_bytes(whole)
    console(begun).reload()
    small = serving.model_copy(update={"max_prompt_tokens": 64})
    coserving = coserving.model_copy(update={"headroom": 0.3})
    fixed = {"serving": small, "coserving": coserving, "tags": {"project": "a-secret"}}
    with pytest.raises(UserError, match=r"coserving.headroom is 0.3, but the fleet has 0.2") as refused:
        up.reload(changed.model_copy(update=fixed), print)
    assert ("tags.project" in str(refused.value), "a-secret" in str(refused.value)) == (True, False)
    assert terms_of(begun, "a")["max_prompt_tokens"] == 128
    stopped(changed)
    with pytest.raises(UserError, match="does not run here"):
        up.reload(changed, print)
    reasons = [reason for _, reason, _ in recorded(tmp_path, begun.remembered.run_id)]
    assert reasons[0] is reasons[-1] is None
    assert [all(part in reasons[1] for part in expected), len(reasons)] == [True, 3]


def test_what_a_fleet_run_that_is_kept_stands_on_may_not_change(tmp_path, cluster):
    run_id = started(fleet(tmp_path)).remembered.run_id
    stopped(fleet(tmp_path), keep_runs=True)
    for name, value in {"model": "another", "ledger": "elsewhere"}.items():
        with pytest.raises(UserError, match=f"{name}.* is .*{value}'.* fleet run {run_id} has"):
            up.up(fleet(tmp_path, **{name: value}), None, print)
    kept = remembered(tmp_path)
    assert kept is not None
    assert (kept.run_id, kept.kept) == (run_id, True)


def test_it_ends_though_its_ledger_refuses_and_the_next_run_tells_it(tmp_path, cluster):
    config = fleet(tmp_path)
    begun = started(config)
    run, former = open_run(begun), begun.remembered.run_id
    shutil.rmtree(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("no folder")
    assert any("the event of the end: did not end in order: FolderError" in text for text in stopped(config))
    assert remembered(tmp_path) is None
    (tmp_path / "ledger").unlink()
    started(config)
    stopped(config)
    ended = "SELECT run_id, fleet_run_id FROM event WHERE kind = 'run' AND action = 'ended' AND run_id = ?"
    assert ask(tmp_path / "ledger", ended, [run["run_id"]]) == [(run["run_id"], former)]


def test_what_a_host_did_not_end_in_order_is_named_and_one_that_hangs_is_ended(tmp_path, cluster, monkeypatch):
    config = fleet(tmp_path, TWO_HOSTS)
    started(config)
    monkeypatch.setattr(Part, "undone", ("ROSE's serving engines: did not end in order: it hangs",))
    assert "host one stopped, except ROSE's serving engines: did not end in order: it hangs" in stopped(config)
    started(config)
    monkeypatch.setattr(up, "_STOP_HOST_TIMEOUT_S", 0.3)
    let_go = threading.Event()
    monkeypatch.setattr(Part, "let_go", let_go)
    cluster.timeouts_s.clear()
    said = stopped(config)
    let_go.set()
    assert sum(cluster.timeouts_s[:2]) <= 0.6
    for name in ("one", "other"):
        assert any(text.startswith(f"host {name} was ended before an orderly stop") for text in said)
    assert all(actor.ended for actor in cluster.actors.values())


def test_nothing_is_started_while_nothing_can_be_archived_to_where_the_file_says(tmp_path, cluster):
    table = f'[archive]\nto = "{tmp_path}/ledger/cold"\nafter_days = 30\n'
    with pytest.raises(UserError, match=f"archive.to '{tmp_path}/ledger/cold': .*lies in the ledger"):
        up.up(fleet(tmp_path, TWO_HOSTS + table), Here.address, print)
    assert cluster.actors == {}


def test_a_fleet_whose_trace_is_gone_ends_on_record(tmp_path, cluster):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,12,3\n")
    made = fleet(tmp_path)
    made = made.model_copy(update={"traffic": made.traffic.model_copy(update={"trace": str(trace)})})
    run_id = started(made).remembered.run_id
    trace.unlink()
    stopped(made)
    query = "SELECT status, trace, trace_keep_share FROM run WHERE run_id = ?"
    assert ask(tmp_path / "ledger", query, [run_id]) == [("ended", "trace", 1.0)]


def test_the_part_that_is_named_is_started_anew_and_knows_its_runs(tmp_path, cluster, monkeypatch):
    config = fleet(tmp_path, TWO_HOSTS)
    begun = started(config)
    run = open_run(begun)
    for name, part in (("other", "host other"), ("controller", "controller")):
        before = {name: actor._body for name, actor in cluster.actors.items()}
        up.restart(config, Here.address, name, print)
        assert [name for name, actor in cluster.actors.items() if actor._body is not before[name]] == [part]
    call(begun, "POST", f"/runs/{run['run_id']}/renew", {"fence": 1})
    with pytest.raises(UserError, match="fleet 'f' has no part 'third'"):
        up.restart(config, Here.address, "third", print)
    with pytest.raises(DeploymentError, match=r"has no host rack-3: .* `rose down --keep-runs` and `rose up`"):
        up.restart(fleet(tmp_path, TWO_HOSTS.replace('"other"', '"rack-3"')), Here.address, "rack-3", print)
    monkeypatch.setattr(up, "_STOP_HOST_TIMEOUT_S", 0.1)
    let_go, said = threading.Event(), []
    monkeypatch.setattr(Part, "let_go", let_go)
    before = cluster.actors["host one"]._body
    up.restart(config, Here.address, "one", said.append)
    assert cluster.actors["host one"]._body is not before
    assert any("was ended before an orderly stop: it did not answer" in text for text in said)
    let_go.set()
    stopped(config)


def test_whoever_looks_places_what_is_gone_and_starts_what_was_left_stopped(tmp_path, cluster):
    config = fleet(tmp_path, TWO_HOSTS)
    begun = started(config)
    cluster.actors["host one"].ended = True
    cluster.actors["host other"]._body.doing = process.STOPPING
    gone, stopped_one = cluster.actors["host one"], cluster.actors["host other"]._body
    with FleetMemory(config).alone() as alone:
        assert alone
        assert begun.is_running()
        assert cluster.actors["host one"] is gone
    assert begun.is_running()
    assert cluster.actors["host one"] is not gone
    assert cluster.actors["host other"]._body is not stopped_one
    begun.wait_ready(print)
    stopped(config)
    assert not begun.is_running()
    assert cluster.find("host one") is None
    with pytest.raises(DeploymentError, match="fleet 'f' has ended: `rose up` starts it again"):
        begun.wait_ready(print)


class KilledError(BaseException):
    """As by SIGKILL: nobody tidies up."""


@pytest.mark.parametrize(("again", "keep_runs"), [("up", False), ("up", True), ("down", True)])
def test_what_a_killed_down_has_left_the_next_command_ends(tmp_path, cluster, monkeypatch, keep_runs, again):
    config = fleet(tmp_path, TWO_HOSTS)
    begun = started(config)
    run, run_id = open_run(begun), begun.remembered.run_id
    with monkeypatch.context() as patched, suppress(KilledError):
        end = cluster.end

        def killed(actor: Any, *, again: bool = False) -> None:
            if actor is cluster.actors["controller"]:
                raise KilledError
            end(actor, again=again)

        patched.setattr(cluster, "end", killed)
        up.down(config, Here.address, print, keep_runs=keep_runs)
    assert cluster.find("controller") is not None
    assert not begun.is_running()
    if again == "up":
        assert (started(config).remembered.run_id == run_id) is keep_runs
        last = "started" if keep_runs else "ended"
        assert recorded(tmp_path, run["run_id"])[-1][0] == last
        stopped(config)
    else:
        stopped(config)
        kept = remembered(tmp_path)
        assert (kept is not None and kept.kept) == keep_runs


def test_who_starts_it_again_finds_it_and_hears_of_a_changed_file_and_no_token(tmp_path, cluster):
    config = fleet(tmp_path)
    started(config)
    before, secret = dict(cluster.actors), "another-token"
    edited = config.model_copy(update={"gateway": config.gateway.model_copy(update={"token": secret})})
    for file, changed in ((config, False), (edited, True)):
        said: list[str] = []
        assert up.up(file, Here.address, said.append).config.gateway.token == TOKEN
        assert any("runs: keeping its healthy parts" in text for text in said)
        assert any("its fleet file has changed" in text for text in said) is changed
        assert not any(secret in text or TOKEN in text for text in said)
    assert cluster.actors == before
    stopped(config)


def test_a_fleet_is_begun_and_ended_on_its_first_host_alone(tmp_path, cluster, monkeypatch):
    config = fleet(tmp_path, TWO_HOSTS)
    monkeypatch.setattr(Here, "own_resources", lambda _: {"node:127.0.0.2"})
    for act in (up.up, up.down):
        with pytest.raises(DeploymentError, match=r"this host is not 'one', the first .* its Ray lacks 'node"):
            act(config, Here.address, print)
    assert cluster.actors == {}
    assert remembered(tmp_path) is None


def test_where_several_hosts_have_their_ray_is_known_to_the_first_host_and_asked_for_elsewhere(tmp_path, cluster):
    config = fleet(tmp_path, TWO_HOSTS)
    with pytest.raises(UserError, match="has 2 hosts: name their Ray by --address"):
        up.down(config, None, print)
    started(config)
    cluster.joined.clear()
    up.restart(config, None, "one", print)
    assert up.down(config, None, print)
    assert cluster.joined == [Here.address] * 2
    assert not up.down(config, None, print)
    with pytest.raises(UserError, match="name their Ray by"):
        up.up(config, None, print)


def test_a_fleet_on_one_host_is_found_where_it_was_started_and_goes_on_anywhere_once_it_was_put_down(
    tmp_path, cluster, monkeypatch
):
    begun: list[Path] = []
    monkeypatch.setattr(up.local_ray, "start", lambda folder: begun.append(folder) or "127.0.0.1:9")
    config = fleet(tmp_path)
    started(config)
    cluster.joined.clear()
    up.up(config, None, print)
    assert (cluster.joined, begun) == ([Here.address], [])
    with monkeypatch.context() as patched:
        patched.setattr(Here, "address", "10.0.0.9:6379")
        with pytest.raises(UserError, match=r"fleet 'f' runs on the Ray at 127.0.0.1:6379"):
            up.up(config, "10.0.0.9:6379", print)
    stopped(config, keep_runs=True)
    assert not up.down(config, None, print)
    up.up(config, None, print)
    assert begun == [tmp_path / "state" / "f"]
    stopped(config)


def test_whoever_stays_hears_that_its_ray_is_lost(tmp_path, cluster, monkeypatch):
    begun = started(fleet(tmp_path))
    monkeypatch.setattr(up, "_AWAY_S", 0.05)
    monkeypatch.setattr(up, "listens", lambda _: False)
    with pytest.raises(DeploymentError, match="fleet 'f' lost its Ray: `rose up` starts it again"):
        begun.is_running()
    monkeypatch.setattr(up, "listens", lambda _: True)
    stopped(fleet(tmp_path))


def test_a_host_that_the_file_has_no_more_may_send_no_events_and_comes_back_with_another_token(tmp_path, cluster):
    def tokens(name: str, place: str) -> dict[str, str]:
        renamed = TWO_HOSTS.replace('"other"', f'"{name}"').replace("127.0.0.2", place)
        config = fleet(tmp_path, renamed if name == "other" else renamed.replace('id = "b"', 'id = "c"'))
        started(config)
        stopped(config, keep_runs=True)
        return cluster.actors["controller"]._body._plan.host_tokens

    first, third, again = (tokens(name, f"127.0.0.{part}") for name, part in (("other", 2), ("third", 3), ("other", 2)))
    assert ([*first], [*third], [*again]) == (["other"], ["third"], ["other"])
    assert len({first["other"], third["third"], again["other"]}) == 3


def test_each_part_reads_what_it_is_told_with_defaults_for_the_fields_that_are_not_there(tmp_path, cluster):
    config = fleet(tmp_path, TWO_HOSTS)
    begun = up.Fleet(config, Here(), up._begin(config, Here()), print)
    kinds = {"controller": up.ControllerPlan, "host one": up.HostPlan, "host other": up.HostPlan}
    plans = {part.name: process.load(kinds[part.name], part.arguments[0]) for part in begun.parts}
    assert plans.keys() == kinds.keys()
    known = {name: value for name, value in json.loads(begun.parts[0].arguments[0]).items() if name != "agent_token"}
    assert process.load(up.ControllerPlan, json.dumps(known)) == replace(plans["controller"], agent_token="")
    assert plans["host other"].config == plans["controller"].config == config
    token, agents = begun.remembered.tokens["other"], begun.remembered.agent_token
    assert (plans["host other"].ledger_token, plans["host one"].ledger_token) == (token, "")
    assert plans["controller"].host_tokens == {"other": token}
    assert {plan.agent_token for plan in plans.values()} == {agents}
    assert agents not in repr(plans["controller"])


def test_a_second_demo_on_a_ledger_is_refused(tmp_path, monkeypatch):
    config = demo([0, 1], ledger=tmp_path / "ledger")
    monkeypatch.setattr(preflight, "check", lambda _config: None)
    monkeypatch.setattr(local_ray, "find", {places.state_folder(config): "127.0.0.1:1"}.get)
    with pytest.raises(DeploymentError, match="runs already"):
        run_demo(config, print, threading.Event())
    assert not (tmp_path / "ledger").exists()
