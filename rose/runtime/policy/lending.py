"""Explains why a device lends nothing. `rose status`, the page "Fleet now" and the ledger's `hold` show the reason."""

from __future__ import annotations

from dataclasses import dataclass

_MINUTE_NS = 55_000_000_000  # An observed time of at least this is called a minute.
_BUSY_SHARE = 0.5  # If serving works this share of the time, an engine on the same cores may stand still.


@dataclass(frozen=True, slots=True)
class Reason:
    name: str
    text: str  # For the owner; the name is for the ledger.


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineState:
    engine_id: str
    borrowed: bool
    leased: bool = False
    works: bool = True  # False: serving leaves it no room under its lease.
    fault: str | None = None  # Why it is not alive.
    start: str | None = None  # The change of its model, if any.
    failed: str | None = None  # Why the last sync failed.
    run_id: str | None = None
    held_run_id: str | None = None
    version: int = 0
    version_min: int = 0
    turns: int = 0  # Open turns of its run, or of the fleet if it has no run.


@dataclass(frozen=True, kw_only=True, slots=True)
class LendingFacts:
    engine: EngineState | None
    drained: bool = False
    drain_reason: str | None = None
    silent_ns: int = 0
    refused: Reason | None = None  # Why the agent of the device refuses a lease.
    serving_ns: int = 0  # Serving's work in the last `observed_ns`.
    observed_ns: int = 0


def at_work(serving_ns: int, observed_ns: int) -> str:
    if not observed_ns:
        return "serving is at work"
    last = "minute" if observed_ns >= _MINUTE_NS else f"{observed_ns / 1e9:.0f} s"
    return f"serving was at work {serving_ns / observed_ns:.0%} of the last {last}"


def why_not_lent(facts: LendingFacts) -> Reason | None:
    """Return why no rollout can run on a device, or None if one can."""
    if facts.drained:
        return Reason("drained", "drained" if facts.drain_reason is None else f"drained: {facts.drain_reason}")
    if facts.silent_ns:
        return Reason("agent_silent", f"its agent has not reported for {facts.silent_ns / 1e9:.0f} s")
    if facts.refused is not None:
        return facts.refused
    if (engine := facts.engine) is None:
        return Reason("no_engine", "it has no rollout engine")
    if engine.start is not None:
        return Reason("model_change", engine.start)
    if engine.fault is not None:
        return Reason("engine_away", engine.fault)
    return _weights(facts, engine) or _lease(facts, engine)


def _weights(facts: LendingFacts, engine: EngineState) -> Reason | None:
    lacks = engine.run_id != engine.held_run_id or engine.version < engine.version_min
    if engine.failed is not None and (lacks or not engine.turns):  # Turns may accept the former version.
        return Reason("sync_failed", f"{engine.engine_id} could not load new weights: {engine.failed}{_busy(facts)}")
    if engine.run_id is None:
        if engine.turns:
            return Reason("other_engines", f"other engines have the runs of the {engine.turns:,} turns that wait")
        return Reason("no_demand", "no run has turns for it")
    if engine.run_id != engine.held_run_id:
        return Reason("sync", f"{engine.engine_id} is loading the weights of run {engine.run_id}{_busy(facts)}")
    if engine.turns and lacks:
        versions = f"version {engine.version}, and turns want {engine.version_min} or newer"
        return Reason("sync", f"{engine.engine_id} has {versions}{_busy(facts)}")
    return None


def _lease(facts: LendingFacts, engine: EngineState) -> Reason | None:
    if engine.borrowed and not engine.leased:
        if not engine.turns:
            return Reason("no_demand", f"run {engine.run_id} has no turns now")
        return Reason("no_lease", "a lease is due: its agent has not granted it yet")
    if not engine.works:
        return Reason("no_slack", f"{at_work(facts.serving_ns, facts.observed_ns)}, and leaves rollouts no time")
    return None


def _busy(facts: LendingFacts) -> str:
    assert facts.engine is not None
    if not facts.engine.borrowed or facts.serving_ns < _BUSY_SHARE * facts.observed_ns or not facts.observed_ns:
        return ""
    return f"; {at_work(facts.serving_ns, facts.observed_ns)}"
