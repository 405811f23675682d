"""Merges device slices and power readings, and counts other events, while the queue is full: no nanosecond is lost."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rose.events import Event, LedgerAction
from rose.ledger.files import rows
from rose.ledger.files.rows import Row

MERGED_MAX = 4096  # Maximum of merged events: one for each device, engine and lease of some hours.
_AMOUNTS = ("_tokens", "_bytes", "_ns")
_MOMENTS = ("t0_ns", "t1_ns", "t_ns")


class Overflow:
    """Events that the queue could not take. Use it in one thread, or under a lock."""

    def __init__(self) -> None:
        self._merged: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._counts: Counter[tuple[str | None, str]] = Counter()  # By run (None: the writer's) and kind.
        self._sums: dict[tuple[str | None, str], Counter[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._merged or self._counts)

    def add(self, event: Event, values: tuple[Any, ...]) -> None:
        named = {field.name: value for field, value in zip(rows.fields_of(event.kind), values, strict=True)}
        if event.kind in ("device_slice", "power") and self._merge(event.kind, named):
            return
        key = event.run_id, event.kind
        self._counts[key] += 1
        sums = self._sums.setdefault(key, Counter())
        for name, value in named.items():
            if isinstance(value, int) and name.endswith(_AMOUNTS) and name not in _MOMENTS:
                sums[name] += value

    def drain(self) -> Iterator[Row]:
        for (kind, *_), named in self._merged.items():
            yield kind, tuple(named.values())
        for run_id in dict.fromkeys(run_id for run_id, _ in self._counts):
            counts = {kind: count for (run, kind), count in self._counts.items() if run == run_id}
            kinds = {
                kind: {"count": count, **{name: total for name, total in self._sums[run_id, kind].items() if total}}
                for kind, count in counts.items()
            }
            detail = json.dumps({"count": sum(counts.values()), "kinds": kinds})
            yield LedgerAction.kind, rows.encode(LedgerAction(action="dropped", run_id=run_id, detail_json=detail))
        self.__init__()  # type: ignore[misc]

    def _merge(self, kind: str, named: dict[str, Any]) -> bool:
        same = (
            *("run_id", "device_id", "engine_id", "lease_id", "trajectory_id", "policy_version", "event_id", "source"),
            *("rollout_run_id", "train_run_id"),
        )
        identity = tuple(named.get(name) for name in same)
        before = self._merged.pop((kind, *identity, named["t0_ns"]), None)
        if before is None and len(self._merged) >= MERGED_MAX:
            return False
        if before is not None:
            if kind == "power":
                _merge_readings(before, named)
            else:
                for name in named:
                    if name.endswith("_ns") and name not in _MOMENTS:
                        known = [one[name] for one in (before, named) if one[name] is not None]
                        named[name] = sum(known) if known else None
            named["t0_ns"] = before["t0_ns"]
        self._merged[kind, *identity, named["t1_ns"]] = named
        return True


def _merge_readings(before: dict[str, Any], named: dict[str, Any]) -> None:
    """Merge the reading `before` into `named`: energies are summed, power and busy share averaged over time.

    If one reading lacks an energy, a power or a share, the merged value is unknown."""
    lengths_ns = [reading["t1_ns"] - reading["t0_ns"] for reading in (before, named)]
    for name in ("energy_mj", "package_energy_mj", "busy_share", "power_mw"):
        values = [before[name], named[name]]
        if None in values:
            named[name] = None
        elif name.startswith(("energy", "package")):
            named[name] = sum(values)
        else:
            weighed = sum(value * ns for value, ns in zip(values, lengths_ns, strict=True))
            span_ns = max(1, sum(lengths_ns))
            named[name] = weighed // span_ns if name == "power_mw" else weighed / span_ns
