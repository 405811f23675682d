"""The actor of the controller, in this process."""

from __future__ import annotations

import json
import socket

import duckdb

from rose.runtime.scheduling.runs.answers import AnswerStore, Kept
from rose.runtime.service import controller
from rose.runtime.service.controller import ControllerActor, ControllerPlan
from tests.runtime.service.fleet_here import fleet, until

TURN = {
    "at_us": 1_800_000_000_000_000,
    "event_id": "made/0",
    "run_id": "r",
    "fleet_run_id": "fleet",
    "trajectory_id": "t",
    "group_id": "g",
    "step": 0,
    "turn": 0,
    "attempt": 0,
    "answer_tokens": None,
    "engine_id": "e",
    "device_id": "d",
    "lease_id": None,
    "policy_version": 0,
    "placement": "queue",
    "outcome": "completed",
    "prompt_tokens": 1,
    "cached_tokens": 0,
    "output_tokens": 1,
    "queue_ns": 0,
    "duration_ns": 1,
}


def test_a_controller_whose_port_is_taken_records_no_turn_anew_until_it_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(controller, "_AGAIN_S", 0.05)
    config = fleet(tmp_path)
    plan = ControllerPlan(
        config=config,
        run_id="fleet",
        port=config.gateway.port,
        state=tmp_path / "kept",
        logs=tmp_path / "logs",
        ledger=tmp_path / "ledger",
    )
    plan.state.mkdir()
    kept = AnswerStore(plan.state)
    kept.keep(Kept("r", "k", b"", b"{}", json.dumps([TURN]).encode()))
    kept.close()
    log = plan.logs / "controller.log"
    with socket.create_server((config.gateway.host, plan.port)):
        actor = ControllerActor(plan)
        until(lambda: log.exists() and log.read_text().count("cannot listen on") >= 3)
    until(lambda: not actor.report()[0])
    actor.stop()
    until(lambda: not actor._thread.is_alive())
    rows = f"SELECT count(*) FROM read_parquet('{plan.ledger}/live/*/*/*.parquet') WHERE event_id = 'made/0'"
    assert duckdb.execute(rows).fetchall() == [(1,)]
