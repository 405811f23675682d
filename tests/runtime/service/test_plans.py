"""What the parts of a fleet are told, and that a program which knows more fields takes it up."""

from __future__ import annotations

import json
from typing import Any

from rose.runtime.service import keeper as keeper_module
from rose.runtime.service import plan_json
from rose.runtime.service.controller import ControllerPlan
from rose.runtime.service.memory import FleetMemory
from rose.runtime.service.places import HostPlan
from rose.runtime.service.plans import Plans
from tests.runtime.service.fleet_here import Actor, Here, Part, fleet, stopped, until
from tests.runtime.service.test_keeper import TWO_HOSTS


def older(text: str) -> str:
    """As a version wrote it that did not know a field of the plan, one of the fleet file and one of its tables."""
    told = json.loads(text)
    config = told.get("config", told)
    for table, name in ((told, "cores"), (config, "cache"), (config.get("coserving", {}), "heartbeat_s")):
        table.pop(name, None)
    return json.dumps(told)


class Older(Here):
    """Its actors are started with what an older version told them."""

    def place(self, name: str, cls: type, *arguments: Any, resource: str) -> Actor:
        return super().place(name, cls, older(arguments[0]), *arguments[1:], resource=resource)


class Noted(Here):
    """It notes what its actors are told."""

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace)
        self.told: dict[str, str] = {}

    def place(self, name: str, cls: type, *arguments: Any, resource: str) -> Actor:
        self.told[name] = arguments[0]
        return Actor(Part())


def test_keeper_and_controller_begin_with_what_an_older_version_told_them(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper_module, "Fabric", Older)
    keeper = keeper_module.Keeper(older(plan_json.dump(fleet(tmp_path))), "127.0.0.1")
    until(lambda: keeper.state().ready)
    stopped(keeper)


def test_each_part_reads_what_it_is_told_with_defaults_for_the_fields_that_are_not_there(tmp_path):
    config, fabric = fleet(tmp_path, TWO_HOSTS), Noted("f")
    memory = FleetMemory(config)
    remembered = memory.begin()
    remembered.port, remembered.url = 30100, "http://127.0.0.1:30100"
    for part in Plans(config, fabric, memory, "127.0.0.1", {}).parts(remembered):
        part.place()
    kinds = {"controller": ControllerPlan, "host one": HostPlan, "host other": HostPlan}
    plans = {name: plan_json.load(kinds[name], text) for name, text in fabric.told.items()}
    assert plans.keys() == kinds.keys()
    for name, text in fabric.told.items():
        assert plan_json.load(kinds[name], older(text)) == plans[name]
        # One that a keeper made which wrote no JSON.
        assert plan_json.load(kinds[name], plans[name]) is plans[name]
    assert plans["host other"].config == plans["controller"].config == config
    assert plans["host other"].ledger_token == remembered.tokens["other"]
    assert plans["controller"].host_tokens == {"other": (remembered.tokens["other"], ("other",))}
    assert plans["host one"].ledger_token == ""
    agents = {plan.agent_token for plan in plans.values()}
    assert agents == {remembered.agent_token}
    assert remembered.agent_token not in repr(plans["controller"])


def test_the_agent_token_is_made_once_for_a_fleet_run_and_kept_for_its_user_alone(tmp_path):
    memory = FleetMemory(fleet(tmp_path))
    first = memory.begin()
    memory.write(first)
    assert len(first.agent_token) == 64
    # As after a restart, or `rose down --keep-runs`.
    assert memory.begin().agent_token == first.agent_token
    assert {path.stat().st_mode & 0o077 for path in (memory.folder, memory.folder / "fleet.json")} == {0}
    memory.forget()
    assert memory.begin().agent_token not in ("", first.agent_token)
