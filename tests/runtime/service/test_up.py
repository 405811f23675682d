"""Whoever waits for a fleet, while its keeper is started again or gone."""

from __future__ import annotations

from typing import Any

import pytest

from rose.errors import UserError
from rose.runtime.errors import DeploymentError, PartDiedError
from rose.runtime.service import up
from rose.runtime.service.fabric import UnreachableError
from rose.runtime.service.memory import FleetMemory
from rose.runtime.service.parts import FleetState, PartState
from rose.runtime.service.up import Fleet
from tests.runtime.service.fleet_here import TOKEN, Actor, Here, fleet, started, stopped
from tests.runtime.service.test_keeper import TWO_HOSTS

WELL = FleetState(run_id="r", url="http://x", parts=[PartState(name="controller", ready=True, doing="")])


class Answers:
    """A keeper's, in order; the last for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def ask(self, _keeper: object, _method: str, *_: object, timeout_s: float) -> Any:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def made(folder, *answers) -> tuple[Fleet, list[str]]:
    said: list[str] = []
    return Fleet(fleet(folder), Answers(*answers), None, said.append), said


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(up, "_LOOK_S", 0.01)


def test_a_keeper_that_is_started_again_is_waited_for_and_that_is_said_once(tmp_path):
    away = UnreachableError("it is being started again, or its host is away")
    waiting, said = made(tmp_path, away, away, away, WELL)
    assert waiting.goes_on()
    assert said == ["the keeper is away (it is being started again, or its host is away): it is waited for"]
    waiting, said = made(tmp_path, away, away, WELL)
    assert waiting.wait_ready(lambda _: None) == WELL
    assert len(said) == 1


@pytest.mark.parametrize("gone", [UnreachableError("it did not answer"), PartDiedError("it died\nthere")])
def test_one_that_stays_away_is_lost_unless_the_fleet_was_put_down(tmp_path, monkeypatch, gone):
    monkeypatch.setattr(up, "_AWAY_S", 0.05)
    waiting, _ = made(tmp_path, gone)
    memory = FleetMemory(waiting.config)
    remembered = memory.begin()
    with pytest.raises(
        DeploymentError, match=r"keeper of fleet 'f' cannot be asked: it d\w+( not answer)?; .*keeper.log"
    ):
        waiting.goes_on()
    remembered.kept = True
    memory.write(remembered)
    assert not waiting.goes_on()
    memory.forget()
    assert not waiting.goes_on()


class Joined(Here):
    """A cluster without fleets."""

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace)
        self.joined: list[str] = []

    def join(self, address: str) -> None:
        self.joined.append(address)

    def leave(self) -> None:
        pass


def test_where_several_hosts_have_their_ray_is_known_to_the_first_host_and_asked_for_elsewhere(tmp_path, monkeypatch):
    clusters: list[Joined] = []
    monkeypatch.setattr(up, "Fabric", lambda namespace: clusters.append(Joined(namespace)) or clusters[-1])
    config = fleet(tmp_path, TWO_HOSTS)
    for act in (lambda: up.down(config, None, print), lambda: up.restart(config, None, "one", print)):
        with pytest.raises(UserError, match="has 2 hosts: name their Ray cluster by --address"):
            act()
    memory = FleetMemory(config)
    remembered = memory.begin()
    remembered.ray_address = "10.0.0.1:6379"
    memory.write(remembered)
    assert not up.down(config, None, print)
    with pytest.raises(DeploymentError, match="does not run: `rose up` starts it"):
        up.restart(config, None, "one", print)
    assert [cluster.joined for cluster in clusters] == [["10.0.0.1:6379"]] * 2
    # Once it has ended here, that is known too.
    memory.forget()
    assert not up.down(config, None, print)
    with pytest.raises(UserError, match="name their Ray cluster"):
        up.up(config, None, print)
    assert len(clusters) == 2


def test_a_fleet_on_one_host_is_found_where_it_was_started_and_goes_on_anywhere_once_it_was_put_down(
    tmp_path, monkeypatch
):
    cluster, begun = Joined("f"), []
    monkeypatch.setattr(up, "Fabric", lambda _: cluster)
    monkeypatch.setattr(up.preflight, "check", lambda _: None)
    monkeypatch.setattr(up.preflight, "notice", lambda _: None)
    monkeypatch.setattr(up.local_ray, "stop", lambda _: None)
    monkeypatch.setattr(up.local_ray, "start", lambda folder: begun.append(folder) or "127.0.0.1:9")
    config = fleet(tmp_path)
    memory = FleetMemory(config)
    remembered = memory.begin()
    remembered.ray_address = "10.0.0.1:6379"
    memory.write(remembered)
    up.up(config, None, print)
    assert (cluster.joined, begun) == (["10.0.0.1:6379"], [])
    cluster.actors.clear()
    remembered.kept = True
    memory.write(remembered)
    assert not up.down(config, None, print)
    up.up(config, None, print)
    assert (cluster.joined, begun) == (["10.0.0.1:6379", "127.0.0.1:9"], [tmp_path / "state" / "f"])


class Keeper:
    """One whose fleet ends after it was asked how it is a few times."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def state(self) -> FleetState:
        self.looks -= 1
        return FleetState(run_id="r", url="http://x", parts=[], stopped=self.looks < 0, ending=True)


def test_a_fleet_that_is_being_put_down_is_waited_for_and_then_started(tmp_path, monkeypatch):
    cluster = Joined("f")
    monkeypatch.setattr(up, "Fabric", lambda _: cluster)
    for looks in (0, 3):
        before = cluster.actors[up.KEEPER] = Actor(Keeper(looks))
        said: list[str] = []
        begun = up.up(fleet(tmp_path, TWO_HOSTS), "10.0.0.1:6379", said.append)
        assert before.ended
        assert begun.keeper is not before
        assert "fleet 'f' is being put down: its end is waited for" in said


def test_whoever_waits_for_a_fleet_hears_that_it_was_put_down(tmp_path):
    waiting, _ = made(tmp_path, FleetState(run_id="r", url="http://x", parts=[], stopped=True))
    with pytest.raises(DeploymentError, match="fleet 'f' was put down: `rose up` starts it again"):
        waiting.wait_ready(lambda _: None)


def test_one_part_is_waited_for_and_not_those_that_are_away(tmp_path):
    away = PartState(name="host other", ready=False, doing="waits for its Ray node (b)")
    starting = PartState(name="controller", ready=False, doing="starting")
    states = [
        FleetState(run_id="r", url="http://x", parts=[part, away])
        for part in (starting, PartState(name="controller", ready=True, doing=""))
    ]
    waiting, _ = made(tmp_path, *states)
    assert waiting.wait_ready(lambda _: None, part="controller") == states[1]


def test_who_stops_waiting_for_the_end_leaves_the_ray_that_carries_it(tmp_path, monkeypatch):
    cluster, stopped = Joined("f"), []
    monkeypatch.setattr(up, "Fabric", lambda _: cluster)
    monkeypatch.setattr(up.local_ray, "find", lambda _: cluster.address)
    monkeypatch.setattr(up.local_ray, "stop", stopped.append)
    cluster.actors[up.KEEPER] = Actor(Keeper(1_000_000))
    cluster.actors[up.KEEPER]._body.stop = lambda keep_runs: None

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(up.time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            up.down(fleet(tmp_path), None, print)
    assert stopped == []
    cluster.actors[up.KEEPER]._body.looks = 0
    assert up.down(fleet(tmp_path), None, print)
    assert stopped == [tmp_path / "state" / "f"]


def test_a_part_is_started_anew_and_no_other(tmp_path, monkeypatch):
    cluster, config = Joined("f"), fleet(tmp_path, TWO_HOSTS)
    monkeypatch.setattr(up, "Fabric", lambda _: cluster)
    keeper = started(config, monkeypatch)
    cluster.actors[up.KEEPER] = Actor(keeper)
    parts = keeper._fabric.actors
    before = {name: actor._body for name, actor in parts.items()}
    up.restart(config, "10.0.0.1:6379", "other", print)
    assert [name for name, actor in parts.items() if actor._body is not before[name]] == ["host other"]
    stopped(keeper)
    with pytest.raises(UserError, match="fleet 'f' has no part 'third'"):
        up.restart(config, "10.0.0.1:6379", "third", print)


def test_a_fleet_file_whose_token_alone_has_changed_has_changed(tmp_path, monkeypatch):
    cluster, config = Joined("f"), fleet(tmp_path)
    monkeypatch.setattr(up, "Fabric", lambda _: cluster)
    keeper = started(config, monkeypatch)
    cluster.actors[up.KEEPER] = Actor(keeper)
    secret = "another-token"
    edited = config.model_copy(update={"gateway": config.gateway.model_copy(update={"token": secret})})
    changed: dict[str, bool] = {}
    for name, file in {"as it is": config, "with another token": edited}.items():
        said: list[str] = []
        up.up(file, "10.0.0.1:6379", said.append)
        changed[name] = any("its fleet file has changed since" in text for text in said)
        assert not any(secret in text or TOKEN in text for text in said)
    assert changed == {"as it is": False, "with another token": True}
    assert not any(secret in told for told in (keeper.config(), str(keeper.state())))
    stopped(keeper)
