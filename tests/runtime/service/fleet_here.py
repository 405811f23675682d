import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rose import config
from rose.config import FleetConfig
from rose.runtime.engines.ports import free_port
from rose.runtime.service import up
from rose.runtime.service.controller import ControllerActor
from rose.runtime.service.fabric import UnreachableError
from rose.runtime.service.process import Report
from tests.test_config import MINIMAL

TOKEN = "a-token-of-the-tests"
MODEL = "tiny"


def fleet(folder: Path, more: str = "", *, model: str = MODEL, ledger: str = "ledger") -> FleetConfig:
    text = f"""
name = "f"
state = "{folder}/state"
ledger = "{folder}/{ledger}"
{more}
[rollout]
model = "{model}"
[traffic]
trace = "none"
[gateway]
host = "0.0.0.0"
port = {free_port()}
token = "{TOKEN}"
"""
    return config.parse(text + ("" if "[[device]]" in more else MINIMAL), "fleet.toml")


class Part:
    let_go: threading.Event | None = None
    undone: tuple[str, ...] = ()

    doing = ""

    def report(self) -> Report:
        return Report(doing=self.doing, pid=1)

    def stop(self, serving: bool = True) -> list[str]:
        if self.let_go is not None:
            self.let_go.wait()
        return list(self.undone)


class Actor:
    def __init__(self, body: Any) -> None:
        self._body, self._pool, self.ended = body, ThreadPoolExecutor(4), False

    def __getattr__(self, name: str) -> Any:
        return Method(self._pool, getattr(self._body, name))


class Method:
    def __init__(self, pool: ThreadPoolExecutor, act: Callable[..., Any]) -> None:
        self._pool, self._act = pool, act

    def remote(self, *arguments: object) -> Future[Any]:
        return self._pool.submit(self._act, *arguments)


class Here:
    def __init__(self) -> None:
        self.joined: list[str] = []
        self.actors: dict[str, Actor] = {}
        self._places: dict[str, Callable[[], Any]] = {}
        self.timeouts_s: list[float] = []

    def place(self, name: str, cls: type, *arguments: object, resource: str) -> Actor:
        self._places[name] = (lambda: cls(*arguments)) if cls is ControllerActor else Part
        self.actors[name] = Actor(self._places[name]())
        return self.actors[name]

    node_address, address = "127.0.0.1", "127.0.0.1:6379"

    def join(self, address: str) -> None:
        self.joined.append(address)

    def leave(self) -> None:
        pass

    def own_resources(self) -> set[str]:
        return {"node:127.0.0.1"}

    def find(self, name: str) -> Actor | None:
        found = self.actors.get(name)
        return None if found is None or found.ended else found

    def nodes(self) -> set[str]:
        return {"node:127.0.0.1", "node:127.0.0.2"}

    def answer(self, call: Future[Any], timeout_s: float) -> Any:
        self.timeouts_s.append(timeout_s)
        try:
            return call.result(timeout_s)
        except TimeoutError:
            raise UnreachableError(f"it did not answer within {timeout_s:.0f} s") from None

    def end(self, actor: Actor, *, again: bool = False) -> None:
        if again:
            name = next(name for name, known in self.actors.items() if known is actor)
            actor._body = self._places[name]()
        actor.ended = not again


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Here:
    here = Here()
    monkeypatch.setattr(up, "Fabric", lambda _: here)
    monkeypatch.setattr(up, "listens", lambda _: True)
    monkeypatch.setattr(up.preflight, "check", lambda _: None)
    monkeypatch.setattr(up.preflight, "notice", lambda _: None)
    monkeypatch.setattr(up, "_LOOK_S", 0.02)
    return here


def started(config: FleetConfig, say: Callable[[str], None] = print) -> up.Fleet:
    fleet = up.up(config, Here.address, say)
    fleet.wait_ready(say)
    return fleet


def stopped(config: FleetConfig, *, keep_runs: bool = False) -> list[str]:
    said: list[str] = []
    assert up.down(config, Here.address, said.append, keep_runs=keep_runs)
    return said
