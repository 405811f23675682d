"""The vocabulary of the ledger: one class for each kind of event, and the columns every event shares.

An event is a fact that happened; it is never changed. A correction is a new event. Times: `at_us` is UTC
microseconds since the epoch, `*_ns` fields are integer nanoseconds (`t0_ns` and `t1_ns` are UTC nanoseconds),
`*_bytes` are bytes. All times of what a device's agent records of the device, its engines, leases and syncs are by the
device's clock, see `Clock`. Fields left at None are unknown or do not apply. What a field may hold is its type, and
what the fields of a kind hold together are its `rules`; an event that breaks one is refused where it enters a ledger.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from rose.clock import utc_us
from rose.event_fields import (
    INTERVAL,
    Bytes,
    Count,
    Difference,
    DurationNs,
    Id,
    InstantNs,
    InstantUs,
    OffsetNs,
    Rule,
    Share,
)

Provenance = Literal["live", "replay", "simulated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """What every event carries beside the fields of its kind."""

    kind: ClassVar[str]
    #: True for kinds that must be on disk before the act they describe is acknowledged.
    durable: ClassVar[bool] = False
    #: Fields that are optional in other kinds.
    needs: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()

    at_us: InstantUs = dataclasses.field(default_factory=utc_us)
    #: Chosen by the client; a retried event with the same id counts once. None: the ledger makes one.
    event_id: Id | None = None
    #: The run it belongs to. None: the run of the writer that records it.
    run_id: Id | None = None
    device_id: Id | None = None
    engine_id: Id | None = None
    lease_id: Id | None = None
    trajectory_id: Id | None = None
    policy_version: Count | None = None


class Record(typing.Protocol):
    """Where events go: a ledger writer's `record`. `durable` None means what the event's kind says."""

    def __call__(self, event: Event, *, durable: bool | None = None) -> object: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleDown(Event):
    """Over [t0_ns, t1_ns) of a device, what lending decided about its being there."""

    kind: ClassVar[str] = "scale_down"
    durable: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    rules: ClassVar[tuple[Rule, ...]] = INTERVAL
    #: `kept`: a serving device would have been given back, and was kept to be lent. `let_go`: a dedicated device was
    #: given up, because there was borrowing in its place.
    decision: Literal["kept", "let_go"]
    t0_ns: InstantNs
    t1_ns: InstantNs
    #: The name the price book knows the device by.
    device_class: str
    #: Who decided, such as a person or an autoscaler.
    decided_by: str
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock(Event):
    """How far the clocks of a device's host are from the controller's; it holds until the device's next such event.

    The measured offset is too low by the delay of the quickest recent message.
    """

    kind: ClassVar[str] = "clock"
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    #: `heard`: by a controller that had not heard of the device. `set`: one of the two wall clocks was set. `moved`:
    #: they drifted apart, or a quicker message says so; once a minute at most.
    action: Literal["heard", "set", "moved"]
    #: The host's wall clock less the controller's.
    offset_ns: OffsetNs
    #: The clock by which the device's agent records, less the controller's wall clock: it is taken at the host's boot,
    #: never before what was recorded of the device by then, and goes on whatever the host's wall clock is set to. None:
    #: the agent did not say.
    device_time_offset_ns: OffsetNs | None = None
    host: Id | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger(Event):
    """The ledger about itself: what a compaction merged, events it had to drop, jobs and their results."""

    kind: ClassVar[str] = "ledger"
    durable: ClassVar[bool] = True
    action: str
    detail_json: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Access(Event):
    """Somebody read the ledger, or was refused: who, from where, what for, and what came of it.

    A gateway writes one for each query and refusal. `count` is above 1 where the same happened that often meanwhile:
    refusals of one peer, or its looks at how far writers are, within a second.
    """

    kind: ClassVar[str] = "access"
    durable: ClassVar[bool] = True
    #: The name of a token, or `user@host` for a command on the folder.
    who: Id
    #: `info`: views were listed, or how far writers are. `*_denied`: the token, or a scope of it, was missing.
    action: Literal[
        "query",
        "info",
        "export",
        "verify",
        "report",
        "receipt",
        "token_denied",
        "read_denied",
        "append_denied",
        "admin_denied",
    ]
    outcome: Literal["ok", "refused", "failed", "timeout"]
    #: Address that a call came from; None for a command on the folder.
    peer: str | None = None
    #: What was asked for, its first 1,000 characters; the SHA-256 is that of the whole text in UTF-8.
    statement: str | None = None
    statement_sha256: str | None = None
    result_rows: Count | None = None
    duration_ns: DurationNs | None = None
    count: Count | None = None


#: The `source` of a power event without power.
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Power(Event):
    """What a device drew and did over [t0_ns, t1_ns): mean power in milliwatts, and how it was read.

    `power_mw` is None just where `source` is "not measured", and `reason` why.
    """

    kind: ClassVar[str] = "power"
    rules: ClassVar[tuple[Rule, ...]] = INTERVAL
    t0_ns: InstantNs
    t1_ns: InstantNs
    power_mw: Count | None
    source: Literal["nvml-energy", "nvml-power", "rapl", "other", "not measured"]
    #: What the device's own energy counter went up by, and those of the CPU packages it is only a part of, millijoules.
    energy_mj: Count | None = None
    package_energy_mj: Count | None = None
    #: Share of the time in which the GPU ran a kernel, as NVML last sampled it, or the cores worked.
    busy_share: Share | None = None
    memory_used_bytes: Bytes | None = None
    sm_clock_mhz: Count | None = None
    #: What holds the GPU's clocks where they are, in words; empty: nothing does.
    clock_reasons: str | None = None
    mig_instances: Count | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.power_mw is None) != (self.source == NOT_MEASURED):
            raise ValueError(f"power: source {self.source!r} does not go with power_mw {self.power_mw}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run(Event):
    """A run began or ended. `config_json` is the whole configuration, `host_json` what the host is."""

    kind: ClassVar[str] = "run"
    durable: ClassVar[bool] = True
    action: Literal["started", "ended", "failed"]
    name: str
    config_json: str | None = None
    host_json: str | None = None
    #: Tags of the fleet file, a flat JSON object of strings: who pays (`team`, `serving_team`) and what else it says.
    tags_json: str | None = None
    #: Of an RL run on a fleet that several share: the run that the fleet's own events are of. None: it has its own.
    fleet_run_id: Id | None = None
    reason: str | None = None
    #: Serving traffic of this run: the trace's name, the share of its requests kept, and by how much prompt lengths,
    #: output lengths and gaps between arrivals were multiplied to fit the host. Every latency figure comes with them.
    trace: str | None = None
    trace_keep_share: Share | None = None
    trace_length_scale: float | None = None
    trace_output_length_scale: float | None = None
    trace_time_scale: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Device(Event):
    """A device joined or left the fleet, and is provisioned between; who joins again goes on in that pool and class."""

    kind: ClassVar[str] = "device"
    durable: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    action: Literal["joined", "left"]
    t_ns: InstantNs
    pool: Literal["serving", "rollout", "train"]
    #: The name the price book knows the device by, such as "h100-sxm" or "cpu-core".
    device_class: str
    memory_bytes: Bytes | None = None
    #: What tells it from every other device, whatever runs call it: the UUID of the GPU or MIG instance, else its host
    #: and what it is there, such as "node-3/cores-0-7". None: unknown, and no device of another run is known to be it.
    hardware_id: Id | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine(Event):
    """An engine's life. `memory_mechanism` and `compute_mechanism` say which means of sharing is in use."""

    kind: ClassVar[str] = "engine"
    durable: ClassVar[bool] = True
    #: `attached` and `detached`: an engine of somebody else came to the device's page, or left it; `refused`: it came,
    #: and cannot be shared with, for the reason given. `activated` and `deactivated`: `moved_bytes` of a rollout
    #: engine's memory came to the device for a lease, or left it after one.
    action: Literal["started", "activated", "deactivated", "stopped", "died", "attached", "detached", "refused"]
    role: Literal["serving", "rollout"]
    model: str
    pid: Count | None = None
    kv_bytes: Bytes | None = None
    duration_ns: DurationNs | None = None
    memory_mechanism: str | None = None
    compute_mechanism: str | None = None
    reason: str | None = None
    moved_bytes: Bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease(Event):
    """A change of a lease. Closed by exactly one of released, preempted or expired; open until then."""

    kind: ClassVar[str] = "lease"
    durable: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("lease_id",)
    #: `throttled`: its compute and regret shares were halved; `restored`: one step of what lateness took was undone.
    action: Literal[
        "granted", "renewed", "throttled", "restored", "resized", "frozen", "released", "preempted", "expired"
    ]
    kv_budget_bytes: Bytes
    compute_share: Share
    expires_at_us: InstantUs
    step: Count | None = None
    reason: str | None = None
    #: How much longer lending may make a serving request take than serving alone would, as a share.
    regret_share: Share | None = None
    #: The RL run that the engine was assigned to. None: the run that the event is of, or nobody.
    rl_run_id: Id | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemption(Event):
    """Serving took something back from a rollout engine.

    `yield`: running rollout steps waited between layers: `count` times within a second, for `duration_ns` together.
    `cut`: the KV budget was reduced and the requests
    that no longer fit were ended with their tokens; it took `duration_ns`. `revoke`: the whole lease ended.
    """

    kind: ClassVar[str] = "preemption"
    durable: ClassVar[bool] = True
    action: Literal["yield", "cut", "revoke"]
    reason: str
    step: Count | None = None
    duration_ns: DurationNs | None = None
    requests: Count | None = None
    tokens_kept: Count | None = None
    tokens_lost: Count | None = None
    kv_budget_bytes_before: Bytes | None = None
    kv_budget_bytes_after: Bytes | None = None
    count: Count | None = None
    #: The longest of them.
    longest_ns: DurationNs | None = None
    #: From serving's wish for the device until the rollout was off it: the longest, and the mean.
    latency_ns: DurationNs | None = None
    latency_mean_ns: DurationNs | None = None
    #: Memory that went back to the system.
    returned_bytes: Bytes | None = None
    #: The RL run that the engine was assigned to. None: the run that the event is of, or nobody.
    rl_run_id: Id | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold(Event):
    """Rollouts that had work were refused the device for one reason, `count` times within a second."""

    kind: ClassVar[str] = "hold"
    #: The rule that refused, such as "serving_step", "prefill_slack" or "regret"; "withheld": leases are, at random.
    reason: str
    step: Count | None = None
    count: Count
    duration_ns: DurationNs
    #: The RL run that the engine was assigned to. None: the run that the event is of, or nobody.
    rl_run_id: Id | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdout(Event):
    """[t0_ns, t1_ns) of a serving device, and whether leases are withheld in it at random; recorded as it begins.

    `draw` is made of the seed, the device and the number of the window, t0_ns // window_ns, and leases are withheld
    where it is below `holdout_share`. A window that an agent came into late begins with the agent.
    """

    kind: ClassVar[str] = "holdout"
    durable: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    rules: ClassVar[tuple[Rule, ...]] = INTERVAL
    t0_ns: InstantNs
    t1_ns: InstantNs
    withheld: bool
    draw: Share
    holdout_share: Share
    holdout_seed: Count
    window_ns: DurationNs
    #: For so long after leases began or ceased to be withheld, what was before still shows.
    washout_ns: DurationNs


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime(Event):
    """How well an engine's step times are predicted, which every admission relies on."""

    kind: ClassVar[str] = "step_time"
    role: Literal["serving", "rollout"]
    mode: Literal["prefill", "decode"]
    #: Steps of the engine since the last such event, of both modes.
    steps: Count
    #: Mean of |predicted - measured| / measured over the last steps of the mode.
    error_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync(Event):
    """An engine was brought to `policy_version`, or was not, or holds it no longer: then `reason` says why."""

    kind: ClassVar[str] = "sync"
    durable: ClassVar[bool] = True
    ok: bool
    base_version: Count | None
    encoding: Literal["delta", "dense"]
    wire_bytes: Bytes
    dense_bytes: Bytes
    changed_elements: Count | None = None
    total_elements: Count | None = None
    #: The phases, in order: what the publisher spent; fetch; check what came against its hashes; decode it beside the
    #: running engine; copy it in while the engine stands still; hash what the engine holds and tell the origin.
    encode_ns: DurationNs | None = None
    #: Includes the verification where `verify_ns` is None, as ledgers had it before the two were told apart.
    fetch_ns: DurationNs | None = None
    verify_ns: DurationNs | None = None
    stage_ns: DurationNs | None = None
    pause_ns: DurationNs | None = None
    acknowledge_ns: DurationNs | None = None
    total_ns: DurationNs
    #: Where the bytes came from ("trainer", "relay", "object store"; "audit": none came, an engine was found to have
    #: drifted), and over which priced route ("loopback", "intra-zone", "inter-region", "internet").
    source: str
    route: str
    step: Count | None = None
    sha256: str | None = None
    reason: str | None = None
    #: The RL run that the engine was assigned to. None: the run that the event is of, or nobody.
    rl_run_id: Id | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn(Event):
    """One turn of a trajectory on one engine. A turn cut by preemption has a row for each engine it ran on."""

    kind: ClassVar[str] = "turn"
    #: The run that its device, engine and lease are of. None: its own, or that of the writer that records it.
    fleet_run_id: Id | None = None
    #: None: the trainer did not say.
    group_id: Id | None = None
    step: Count | None = None
    turn: Count
    attempt: Count
    outcome: Literal["completed", "preempted", "failed"]
    #: Why the router placed it there: "prefix", "lease", "least_loaded", "queue".
    placement: str
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    #: Output tokens that are the answer proper (the move), the rest being reasoning; R = output / answer. None: nobody
    #: knows.
    answer_tokens: Count | None = None
    queue_ns: DurationNs
    duration_ns: DurationNs


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory(Event):
    """A trajectory ended. `policy_version` is the oldest that made one of its tokens."""

    kind: ClassVar[str] = "trajectory"
    group_id: Id
    step: Count
    task: str
    outcome: Literal["finished", "truncated", "lost"]
    turns: Count
    prompt_tokens: Count
    output_tokens: Count
    #: None: the trainer does not tell answers from reasoning.
    answer_tokens: Count | None = None
    staleness: Difference
    duration_ns: DurationNs


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict(Event):
    """What the verifier says of a trajectory. `correct` is ground truth where it is known (an audit), else None."""

    kind: ClassVar[str] = "verdict"
    group_id: Id
    step: Count
    verifier: str
    reward: float
    threshold: float
    accepted: bool
    correct: bool | None = None
    #: The trainer dropped it for age or to keep the batch in shape: its tokens are stale, not rejected.
    stale: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(Event):
    """One serving request as its client saw it. `lease_id` is the lease in force on the device at its arrival."""

    kind: ClassVar[str] = "request"
    request_id: Id
    outcome: Literal["completed", "failed"]
    prompt_tokens: Count
    output_tokens: Count
    ttft_ns: DurationNs | None
    tpot_mean_ns: DurationNs | None
    tpot_max_ns: DurationNs | None
    e2e_ns: DurationNs
    ttft_budget_ns: DurationNs
    tpot_budget_ns: DurationNs
    #: How late the client sent it against the trace's own time: load generator trouble, not the server's.
    send_delay_ns: DurationNs
    reason: str | None = None
    #: Prompt tokens that the server found in its prefix cache; None: it did not say.
    cached_tokens: Count | None = None


#: The seven buckets of device time, in the order they are shown.
BUCKETS: tuple[str, ...] = ("serving", "rollout", "train", "sync", "activation", "headroom", "idle")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSlice(Event):
    """Where every nanosecond of [t0_ns, t1_ns) of one device went; the seven sum to t1_ns - t0_ns exactly."""

    kind: ClassVar[str] = "device_slice"
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    rules: ClassVar[tuple[Rule, ...]] = (
        *INTERVAL,
        Rule(
            "t1_ns",
            f"{' + '.join(f'{bucket}_ns' for bucket in BUCKETS)} == t1_ns - t0_ns",
            "t0_ns and the sum of the seven buckets",
        ),
    )
    t0_ns: InstantNs
    t1_ns: InstantNs
    serving_ns: DurationNs
    rollout_ns: DurationNs
    train_ns: DurationNs
    sync_ns: DurationNs
    activation_ns: DurationNs
    headroom_ns: DurationNs
    idle_ns: DurationNs
    #: Time both engines worked at once; it is inside serving_ns and rollout_ns, half each.
    overlap_ns: DurationNs = 0
    #: Whose rollout, sync, activation and headroom time it is, and whose train time: a slice ends where the engine is
    #: assigned to another RL run. None: the run that the event is of.
    rollout_run_id: Id | None = None
    train_run_id: Id | None = None

    def __post_init__(self) -> None:
        total = sum(getattr(self, f"{bucket}_ns") for bucket in BUCKETS)
        if total != self.t1_ns - self.t0_ns:
            raise ValueError(
                f"device_slice of {self.device_id}: buckets sum to {total} ns, not {self.t1_ns - self.t0_ns}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Step(Event):
    """One RL step: rollout, update, sync. `policy_version` is the version it published."""

    kind: ClassVar[str] = "step"
    step: Count
    groups: Count
    trajectories: Count
    trajectories_accepted: Count
    reward_mean: float
    #: None: it came out as no number.
    loss: float | None
    entropy: float | None
    kl: float | None
    grad_norm: float | None
    tokens_trained: Count
    rollout_ns: DurationNs
    train_ns: DurationNs
    sync_ns: DurationNs
    total_ns: DurationNs


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Run,
        Device,
        Engine,
        Lease,
        Preemption,
        Hold,
        Holdout,
        StepTime,
        Sync,
        Turn,
        Trajectory,
        Verdict,
        Request,
        DeviceSlice,
        Step,
        Power,
        ScaleDown,
        Clock,
        Ledger,
        Access,
    )
}
