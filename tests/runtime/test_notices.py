from __future__ import annotations

import pytest

from rose.events import Engine
from rose.ledger.layout import LedgerError
from rose.runtime.notices import SAY_REFUSAL_AFTER_S, AgentReport, DeathWatch, Notices


def engine(action="died", role="rollout", pid=7, reason="its scheduler ended"):
    return Engine(
        device_id="gpu-0", engine_id=f"gpu-0-{role}", action=action, role=role, model="m", pid=pid, reason=reason
    )


class Console:
    """What was said, and a clock."""

    def __init__(self):
        self.lines: list[str] = []
        self.now_s = 0.0
        self.notices = Notices(self.lines.append, lambda: self.now_s)

    def look(self, *reports: AgentReport | None) -> list[str]:
        self.lines.clear()
        self.notices.look(reports)
        return self.lines


def test_a_death_is_remembered_in_words_and_every_event_goes_on():
    recorded = []
    watch = DeathWatch(lambda event, *, durable=None: recorded.append((event, durable)))
    events = [engine("started"), engine(), engine(pid=8, role="serving", reason=None)]
    for event in events:
        watch.record(event, durable=False)
    assert recorded == [(event, False) for event in events]
    assert watch.deaths == (
        "engine gpu-0-rollout (process 7) died and is started again: its scheduler ended",
        "engine gpu-0-serving (process 8) died",
    )


def test_a_death_that_the_ledger_cannot_take_is_remembered_all_the_same():
    def refuse(event, *, durable=None):
        raise LedgerError("the disk is full")

    watch = DeathWatch(refuse)
    with pytest.raises(LedgerError):
        watch.record(engine())
    assert len(watch.deaths) == 1


def test_of_engines_that_die_on_and_on_the_last_deaths_are_kept():
    watch = DeathWatch(lambda event, *, durable=None: None)
    for pid in range(1000):
        watch.record(engine(pid=pid))
    assert len(watch.deaths) < 20
    assert "process 999" in watch.deaths[-1]


def test_each_death_is_one_line_at_once():
    console = Console()
    assert console.look(None, AgentReport(None, ())) == []
    assert console.look(AgentReport(None, ("a died",)), AgentReport(None, ("b died",))) == ["a died", "b died"]
    assert console.look(AgentReport(None, ("a died",)), None) == []
    # The agent was started again and has forgotten; its engine died once more.
    assert console.look(AgentReport(None, ())) == []
    assert console.look(AgentReport(None, ("a2 died",))) == ["a2 died"]


def test_what_lending_waits_for_is_said_once_it_lasts():
    console = Console()
    refused = AgentReport("gpu-0: no room", ())
    assert console.look(refused) == []
    console.now_s = SAY_REFUSAL_AFTER_S + 0.1
    assert console.look(refused) == ["not lending, serving goes on: gpu-0: no room"]
    assert console.look(refused) == []
    assert console.look(AgentReport(None, ())) == []
    console.now_s *= 3
    assert console.look(AgentReport(None, ())) == ["lending again"]
