"""A simulated fleet with consistent events, over a midnight at which the example price book changes a price."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rose.events import KINDS, Device, Event, Run, Turn
from rose.ledger.files import catalog, segments
from rose.ledger.writer import LedgerWriter

S = 1_000_000_000
MIDNIGHT_NS = 1_772_323_200 * S  #: 2026-03-01 UTC.
HOSTS = 4
RUN = "r"
MIX = {  #: Share of each kind among the events of a device.
    "device_slice": 0.38,
    "request": 0.30,
    "turn": 0.15,
    "trajectory": 0.04,
    "verdict": 0.04,
    "preemption": 0.04,
    "lease": 0.04,
    "sync": 0.01,
}
CYCLE_S, LENT_S = 330, 270  #: A serving device is lent for LENT_S of each CYCLE_S.
STEP_S = 300
JITTER_NS = 40_000_000  #: The host's clock sees a second's boundary up to this much after the full second.
BATCH = 20_000  #: Events between two flushes: fewer than a writer's queue holds, so that none is dropped.
_TASKS = np.array(["maze", "sums"], dtype=object)
_RATE = {kind: share / MIX["device_slice"] for kind, share in MIX.items()}
_RENEWED_EACH = round((LENT_S / CYCLE_S) * 0.75 / (_RATE["lease"] - 2 * 0.75 / CYCLE_S))

Columns = dict[str, Any]
Ints = Any


@dataclass(frozen=True, slots=True)
class Fleet:
    """`devices` devices over `seconds` seconds, a third of them before midnight; three in four serve."""

    devices: int
    seconds: int

    def __post_init__(self) -> None:
        assert self.devices % (4 * HOSTS) == 0, "each host has devices of both pools"

    @property
    def start_ns(self) -> int:
        return MIDNIGHT_NS - self.seconds // 3 * S

    @property
    def events(self) -> int:
        return round(self.devices * self.seconds * sum(_RATE.values()))

    def first(self) -> Iterator[Event]:
        at_us = self.start_ns // 1000
        yield Run(at_us=at_us, action="started", name="made up", tags_json='{"team": "research"}')
        for number in range(self.devices):
            yield Device(
                at_us=at_us,
                device_id=f"gpu{number:03d}",
                action="joined",
                t_ns=self.start_ns,
                pool="rollout" if _dedicated(number) else "serving",
                device_class="h100-sxm",
            )

    def batch(self, host: int, first_s: int, last_s: int) -> list[Event]:
        """Return a host's events of the seconds [first_s, last_s); the same in each call."""
        rng = np.random.default_rng([host, first_s, last_s])
        devices = np.arange(host, self.devices, HOSTS)
        dedicated = _dedicated(devices)
        slots = Slots(self.start_ns, devices, devices[~dedicated], devices[dedicated], first_s, last_s)
        kinds = {
            "device_slice": _slices(rng, slots),
            "lease": _leases(slots),
            "request": _requests(rng, slots),
            "preemption": _preemptions(rng, slots),
            "sync": _syncs(rng, slots),
            **_trajectories(rng, slots),
        }
        return [event for kind, columns in kinds.items() for event in _events(kind, columns)]

    def fill(self, root: Path) -> int:
        events = 0
        step_s = max(1, round(BATCH * HOSTS * self.seconds / self.events))
        for host in range(HOSTS):
            with _writer(root, host) as writer:
                if host == 0:
                    events += record(writer, self.first())
                for first_s in range(0, self.seconds, step_s):
                    events += record(writer, self.batch(host, first_s, min(first_s + step_s, self.seconds)))
        return events

    def more(self, root: Path, events: int, number: int) -> int:
        """Record about `events` more events, the `number`th time; return their number."""
        step_s = max(1, round(events * self.seconds / self.events))
        with writers(root) as hosts:
            return self.go_on(hosts, self.seconds + number * step_s, step_s)

    def go_on(self, hosts: Sequence[LedgerWriter], first_s: int, seconds: int) -> int:
        return sum(record(writer, self.batch(host, first_s, first_s + seconds)) for host, writer in enumerate(hosts))


def record(writer: LedgerWriter, events: Iterable[Event]) -> int:
    number = 0
    for number, event in enumerate(events, 1):
        writer.record(event, durable=False)
        if number % BATCH == 0:
            writer.flush()
    writer.flush()
    return number


@contextmanager
def writers(root: Path) -> Iterator[list[LedgerWriter]]:
    with ExitStack() as stack:
        yield [stack.enter_context(_writer(root, host)) for host in range(HOSTS)]


def close_epochs(root: Path) -> None:
    """Begin a new epoch for every host, so that earlier segments can be merged."""
    for host in range(HOSTS):
        tail = segments.recover(root, f"host-{host}")
        assert tail is not None
        segments.begin_epoch(root, tail)
    catalog.refresh(root)


def _writer(root: Path, host: int) -> LedgerWriter:
    return LedgerWriter.open(root, f"host-{host}", RUN, "simulated")


def turn(number: int) -> Turn:
    return Turn(
        device_id=f"gpu{number % 16:03d}",
        engine_id=f"gpu{number % 16:03d}-rollout",
        lease_id=f"r-gpu{number % 16:03d}-{number // 5000}",
        trajectory_id=f"r-s{number // 5000}-g{number // 64}-{number % 8}",
        policy_version=number // 5000,
        group_id=f"r-s{number // 5000}-g{number // 64}",
        step=number // 5000,
        turn=number % 8,
        attempt=0,
        outcome="completed",
        placement="prefix" if number % 8 else "lease",
        prompt_tokens=180 + number % 150,
        cached_tokens=150 + number % 60,
        output_tokens=20 + number % 40,
        answer_tokens=2,
        queue_ns=1_000_000 + number * 7919 % 5_000_000,
        duration_ns=300_000_000 + number * 104_729 % 900_000_000,
    )


def _events(kind: str, columns: Columns) -> Iterator[Event]:
    make, names = KINDS[kind], list(columns)
    for row in zip(*(values.tolist() for values in columns.values()), strict=True):
        yield make(**dict(zip(names, row, strict=True)))


@dataclass(frozen=True, slots=True)
class Slots:
    """The seconds [first_s, last_s) of a host's devices."""

    start_ns: int
    devices: Ints
    serving: Ints
    rollout: Ints
    first_s: int
    last_s: int

    def all(self, devices: Ints) -> tuple[Ints, Ints]:
        seconds = np.arange(self.first_s, self.last_s)
        return np.repeat(devices, len(seconds)), np.tile(seconds, len(devices))

    def draw(self, rng: np.random.Generator, kind: str, devices: Ints) -> tuple[Ints, Ints]:
        n = round(_RATE[kind] * len(self.devices) * (self.last_s - self.first_s))
        return rng.choice(devices, n), rng.integers(self.first_s, self.last_s, n)

    def at_us(self, second: Ints, rng: np.random.Generator) -> Ints:
        return (self.start_ns + second * S) // 1000 + rng.integers(JITTER_NS // 1000, 999_999, len(second))

    def boundary_ns(self, device: Ints, second: Ints) -> Ints:
        """Return where the device's slice of the second begins."""
        noise = (device * 2_654_435_761 + second * 40_503_111) % 2_147_483_647 % JITTER_NS
        return self.start_ns + second * S + np.where(second == 0, 0, noise)

    def lent(self, rng: np.random.Generator, kind: str) -> tuple[Ints, Ints]:
        device, second = self.draw(rng, kind, self.serving)
        keep = _lease_number(device, second) >= 0
        return device[keep], second[keep]


def _dedicated(device: Ints) -> Ints:
    return np.asarray(device) // HOSTS % 4 == 3


def _lease_number(device: Ints, second: Ints) -> Ints:
    phase = second + device * 37
    return np.where(~_dedicated(device) & (phase % CYCLE_S < LENT_S), phase // CYCLE_S, -1)


def _lease_ids(device: Ints, second: Ints) -> Ints:
    number = _lease_number(device, second)
    pairs, which = np.unique(np.stack([device, number]), axis=1, return_inverse=True)
    names = [None if n < 0 else f"lease-{d:03d}-{n}" for d, n in pairs.T.tolist()]
    return np.array(names, dtype=object)[which]


def _names(device: Ints) -> Ints:
    return np.array([f"gpu{number:03d}" for number in range(int(device.max(initial=-1)) + 1)], dtype=object)[device]


def _slices(rng: np.random.Generator, slots: Slots) -> Columns:
    device, second = slots.all(slots.devices)
    kept = rng.random(len(device)) >= 0.0005  # A few slices are dropped: their time is unaccounted.
    device, second = device[kept], second[kept]
    t0_ns, t1_ns = slots.boundary_ns(device, second), slots.boundary_ns(device, second + 1)
    n, length = len(device), t1_ns - t0_ns
    dedicated, lent = _dedicated(device), _lease_number(device, second) >= 0
    cuts = (np.sort(rng.random((n, 3)), axis=1) * length[:, None]).astype(np.int64).T
    first, middle, end, rest = cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1], length - cuts[2]
    renewing = lent & (rng.random(n) < 0.02)
    return {
        "at_us": t1_ns // 1000,
        "device_id": _names(device),
        "lease_id": _lease_ids(device, second),
        "t0_ns": t0_ns,
        "t1_ns": t1_ns,
        "serving_ns": np.where(dedicated, 0, first),
        "rollout_ns": np.where(dedicated, first + middle + end, np.where(lent & ~renewing, middle, 0)),
        "train_ns": np.zeros(n, dtype=np.int64),
        "sync_ns": np.where(renewing, middle, 0),
        "activation_ns": np.zeros(n, dtype=np.int64),
        "headroom_ns": np.where(lent, end, 0),
        "idle_ns": np.where(dedicated, rest, np.where(lent, rest, middle + end + rest)),
        "overlap_ns": np.zeros(n, dtype=np.int64),
    }


def _leases(slots: Slots) -> Columns:
    device, second = slots.all(slots.serving)
    phase = (second + device * 37) % CYCLE_S
    granted = (phase == 0) | ((second == 0) & (phase < LENT_S))
    closed = (phase == LENT_S) & (second > 0)
    happens = granted | closed | ((phase < LENT_S) & (phase % _RENEWED_EACH == _RENEWED_EACH - 1))
    device, second, granted, closed = device[happens], second[happens], granted[happens], closed[happens]
    n = len(device)
    at_us = slots.boundary_ns(device, second) // 1000
    return {
        "at_us": at_us,
        "device_id": _names(device),
        "lease_id": _lease_ids(device, np.where(closed, second - 1, second)),
        "action": np.where(granted, "granted", np.where(closed, "released", "renewed")).astype(object),
        "kv_budget_bytes": np.full(n, 8 << 30),
        "compute_share": np.full(n, 1.0),
        "expires_at_us": at_us + 10_000_000,
        "step": second // STEP_S,
    }


def _requests(rng: np.random.Generator, slots: Slots) -> Columns:
    device, second = slots.draw(rng, "request", slots.serving)
    n = len(device)
    ttft_ns, tpot_ns = rng.lognormal(18.5, 0.5, n).astype(np.int64), rng.lognormal(16.8, 0.2, n).astype(np.int64)
    tokens = rng.integers(1, 400, n)
    names = [f"q{slots.devices[0]}-{slots.first_s}-{number}" for number in range(n)]
    return {
        "at_us": slots.at_us(second, rng),
        "device_id": _names(device),
        "engine_id": _names(device) + "-serving",
        "lease_id": _lease_ids(device, second),
        "request_id": np.array(names, dtype=object),
        "outcome": np.full(n, "completed", dtype=object),
        "prompt_tokens": rng.integers(20, 4000, n),
        "output_tokens": tokens,
        "ttft_ns": ttft_ns,
        "tpot_mean_ns": tpot_ns,
        "tpot_max_ns": tpot_ns * 2,
        "e2e_ns": ttft_ns + tpot_ns * tokens,
        "ttft_budget_ns": np.full(n, 500_000_000),
        "tpot_budget_ns": np.full(n, 50_000_000),
        "send_delay_ns": rng.integers(0, 100_000, n),
    }


def _preemptions(rng: np.random.Generator, slots: Slots) -> Columns:
    device, second = slots.lent(rng, "preemption")
    n, cut = len(device), rng.random(len(device)) < 0.03
    return {
        "at_us": slots.at_us(second, rng),
        "device_id": _names(device),
        "lease_id": _lease_ids(device, second),
        "action": np.where(cut, "cut", "yield").astype(object),
        "reason": np.full(n, "a serving step", dtype=object),
        "step": second // STEP_S,
        "duration_ns": rng.integers(10**6, 10**8, n),
        "tokens_lost": np.where(cut, rng.integers(0, 200, n), 0),
    }


def _syncs(rng: np.random.Generator, slots: Slots) -> Columns:
    device, second = slots.lent(rng, "sync")
    n, version = len(device), second // STEP_S
    return {
        "at_us": slots.at_us(second, rng),
        "device_id": _names(device),
        "engine_id": _names(device) + "-rollout",
        "lease_id": _lease_ids(device, second),
        "policy_version": version,
        "step": version,
        "ok": rng.random(n) >= 0.01,
        "base_version": np.maximum(version - 1, 0),
        "encoding": np.full(n, "delta", dtype=object),
        "wire_bytes": rng.integers(10**8, 10**9, n),
        "dense_bytes": np.full(n, 15 << 30),
        "pause_ns": rng.integers(10**6, 10**7, n),
        "total_ns": rng.integers(10**8, 10**9, n),
        "source": np.full(n, "relay-0", dtype=object),
        "route": np.where(rng.random(n) < 0.2, "inter-region", "intra-zone").astype(object),
    }


def _trajectories(rng: np.random.Generator, slots: Slots) -> dict[str, Columns]:
    _, begin = slots.draw(rng, "trajectory", slots.devices)
    n = len(begin)
    number = np.arange(n)
    group = number // 8
    turns = np.minimum(rng.poisson(_RATE["turn"] / _RATE["trajectory"] / 1.03 - 1, n) + 1, 9)
    name = np.array([f"t{slots.devices[0]}-{slots.first_s}-{k}" for k in range(n)], dtype=object)
    group_name = np.array([f"g{slots.devices[0]}-{slots.first_s}-{k}" for k in range(n // 8 + 1)], dtype=object)[group]
    version, ended = begin // STEP_S, begin + 2 * turns
    lost = rng.random(n) < 0.01
    owner, turn_columns = _turns(rng, slots, np.repeat(number, turns), _counted(turns), begin)
    turn_columns |= {
        "trajectory_id": name[owner],
        "group_id": group_name[owner],
        "step": version[owner],
        "policy_version": version[owner],
    }
    output_tokens = turn_columns["output_tokens"]
    total = np.bincount(owner, output_tokens, minlength=n).astype(np.int64)
    at_us = slots.at_us(ended, rng)
    judged = ~lost & (rng.random(n) < 0.98)
    accepted = rng.random(int(judged.sum())) < 0.6
    ids = {"trajectory_id": name, "group_id": group_name, "step": version}
    return {
        "turn": turn_columns,
        "trajectory": {
            "at_us": at_us,
            **ids,
            "policy_version": version,
            "task": _TASKS[group % 2],
            "outcome": np.where(lost, "lost", "finished").astype(object),
            "turns": turns,
            "prompt_tokens": rng.integers(200, 2000, n),
            "output_tokens": total,
            "answer_tokens": turns * 2,
            "staleness": rng.integers(0, 3, n),
            "duration_ns": (ended - begin) * S,
        },
        "verdict": {
            "at_us": at_us[judged] + 500_000,
            **{column: values[judged] for column, values in ids.items()},
            "verifier": np.full(len(accepted), "goal", dtype=object),
            "reward": accepted.astype(float),
            "threshold": np.full(len(accepted), 0.5),
            "accepted": accepted,
            "correct": accepted,
            "stale": rng.random(len(accepted)) < 0.02,
        },
    }


def _counted(turns: Ints) -> Ints:
    return np.arange(int(turns.sum())) - np.repeat(np.cumsum(turns) - turns, turns)


def _turns(rng: np.random.Generator, slots: Slots, owner: Ints, turn: Ints, begin: Ints) -> tuple[Ints, Columns]:
    """Return an attempt at each turn, two seconds apart; some were cut on another device first."""
    second = begin[owner] + 2 * turn + 1
    cut = rng.random(len(owner)) < 0.03
    owner, turn, second = (np.concatenate([values, values[cut]]) for values in (owner, turn, second))
    attempt = np.concatenate([cut.astype(np.int64), np.zeros(int(cut.sum()), dtype=np.int64)])
    whole = np.arange(len(owner)) < len(cut)
    device = rng.choice(slots.devices, len(owner))
    idle = ~_dedicated(device) & (_lease_number(device, second) < 0)  # A serving device without a lease takes no turn.
    device = np.where(idle, rng.choice(slots.rollout, len(owner)), device)
    n, tokens = len(owner), rng.integers(20, 60, len(owner))
    prompt = rng.integers(180, 330, n)
    columns = {
        "at_us": slots.at_us(second, rng),
        "device_id": _names(device),
        "lease_id": _lease_ids(device, second),
        "turn": turn,
        "attempt": attempt,
        "outcome": np.where(whole, np.where(rng.random(n) < 0.005, "failed", "completed"), "preempted").astype(object),
        "placement": np.where(turn == 0, "lease", "prefix").astype(object),
        "prompt_tokens": prompt,
        "cached_tokens": np.where(attempt > 0, 0, prompt - rng.integers(10, 60, n)),
        "output_tokens": tokens,
        "answer_tokens": np.where(whole, 2, 0),
        "queue_ns": rng.integers(1_000_000, 6_000_000, n),
        "duration_ns": rng.integers(300_000_000, 1_200_000_000, n),
    }
    return owner, columns
