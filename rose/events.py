"""The kinds of events. `at_us` is UTC microseconds; `t0_ns` and `t1_ns` are UTC nanoseconds by the device's clock."""

import dataclasses
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, TypeVar

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
    Range,
    Rule,
    Share,
)

Provenance = Literal["live", "replay", "simulated"]
KINDS: dict[str, type["Event"]] = {}  # By name, in the order of the ledger's columns.


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    kind: ClassVar[str]
    durable: ClassVar[bool] = False  # Whether an event must be on disk before the recorded act is acknowledged.
    needs: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()

    at_us: InstantUs = dataclasses.field(default_factory=utc_us)
    event_id: Id | None = None  # Set by the client; a repeated event counts once. None: set by the ledger.
    run_id: Id | None = None  # None: the run of the writer.
    device_id: Id | None = None
    engine_id: Id | None = None
    lease_id: Id | None = None
    trajectory_id: Id | None = None
    policy_version: Count | None = None


E = TypeVar("E", bound=Event)


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def _kind(
    name: str, *, durable: bool = False, needs: tuple[str, ...] = (), rules: tuple[Rule, ...] = ()
) -> Callable[[type[E]], type[E]]:
    def register(cls: type[E]) -> type[E]:
        cls = dataclass(frozen=True, kw_only=True, slots=True)(cls)
        cls.kind, cls.durable, cls.needs, cls.rules = name, durable, needs, rules
        KINDS[name] = cls
        return cls

    return register


class Record(typing.Protocol):
    """A receiver of events, such as a writer's `record`. If `durable` is None, the event's kind decides."""

    def __call__(self, event: Event, *, durable: bool | None = None) -> object: ...


@_kind("run", durable=True)
class Run(Event):
    action: Literal["started", "ended", "failed"]
    name: str
    config_json: str | None = None
    host_json: str | None = None
    tags_json: str | None = None  # Flat JSON object of strings: `team` and `serving_team` pay.
    fleet_run_id: Id | None = None  # The fleet's run, in which an RL run runs. None: the run itself.
    reason: str | None = None
    trace: str | None = None  # Name of serving traffic's trace; every latency figure comes with these five facts.
    trace_keep_share: Share | None = None  # Share of requests kept.
    trace_length_scale: float | None = None  # Factor of prompt lengths.
    trace_output_length_scale: float | None = None  # Factor of output lengths.
    trace_time_scale: float | None = None  # Factor of gaps between requests.


@_kind("device", durable=True, needs=("device_id",))
class Device(Event):
    """A device joined or left the fleet. Until it leaves, it is provisioned, and its pool and class do not change."""

    action: Literal["joined", "left"]
    t_ns: InstantNs
    pool: Literal["serving", "rollout", "train"]
    device_class: str  # Such as "h100-sxm" or "cpu-core".
    memory_bytes: Bytes | None = None
    #: The identity of the device across runs: the UUID of the GPU or MIG instance, or else the host and place, such as
    #: "node-3/cores-0-7". None means unknown; such a device is not equal to any other.
    hardware_id: Id | None = None


@_kind("engine", durable=True)
class Engine(Event):
    """An event in an engine's life. The two `..._mechanism` fields say how this engine shares memory and compute."""

    #: `attached`, `detached`: a foreign engine joined or left the page of the device. `refused`: that engine cannot
    #: share. `activated`, `deactivated`: `moved_bytes` of memory came to a rollout engine, or left it.
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


@_kind("lease", durable=True, needs=("lease_id",))
class Lease(Event):
    """A change of a lease. Exactly one event closes it: released, preempted or expired."""

    action: Literal[  # `throttled`: compute and regret shares were halved; `restored`: a halving was undone.
        "granted", "renewed", "throttled", "restored", "resized", "frozen", "released", "preempted", "expired"
    ]
    kv_budget_bytes: Bytes
    compute_share: Share
    expires_at_us: InstantUs
    step: Count | None = None
    reason: str | None = None
    regret_share: Share | None = None  # Share by which lending may prolong a serving request.
    rl_run_id: Id | None = None  # The RL run of the engine. None: the event's run, or no run.


@_kind("preemption", durable=True)
class Preemption(Event):
    """Serving took back time or memory. `yield`: rollout steps waited `count` times within a second, `duration_ns` in
    sum. `cut`: the KV budget shrank; requests that had to end kept their tokens. `revoke`: a lease ended."""

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
    longest_ns: DurationNs | None = None
    latency_ns: DurationNs | None = None  # Longest time from serving's wish until the rollout was off the device.
    latency_mean_ns: DurationNs | None = None  # Mean of these times.
    returned_bytes: Bytes | None = None
    rl_run_id: Id | None = None  # The RL run of the engine. None: the event's run, or no run.


@_kind("hold")
class Hold(Event):
    """Rollouts had work, but did not get the device: `count` times within a second, for one reason."""

    reason: str  # Such as "serving_step", "prefill_slack" or "regret"; "withheld": at random.
    step: Count | None = None
    count: Count
    duration_ns: DurationNs
    rl_run_id: Id | None = None  # The RL run of the engine. None: the event's run, or no run.
    explanation: str | None = None  # The reason as a sentence, without a lease.


@_kind("holdout", durable=True, needs=("device_id",), rules=INTERVAL)
class Holdout(Event):
    """A time window [t0_ns, t1_ns). It has no leases if its random number `draw` is below `holdout_share`."""

    t0_ns: InstantNs
    t1_ns: InstantNs
    withheld: bool
    draw: Share
    holdout_share: Share
    holdout_seed: Count
    window_ns: DurationNs
    washout_ns: DurationNs  # The old state has effects for this long after a change.


@_kind("step_time")
class StepTime(Event):
    """How precise the predicted step times of an engine are. Admission relies on these predictions."""

    role: Literal["serving", "rollout"]
    mode: Literal["prefill", "decode"]
    steps: Count  # Steps of both modes since the last such event.
    error_share: float  # Recent mean of |predicted - measured| / measured.


@_kind("sync", durable=True)
class Sync(Event):
    """An update of an engine to `policy_version`, or an audit that found wrong weights. `reason` says what failed."""

    ok: bool
    base_version: Count | None
    encoding: Literal["delta", "dense"]
    wire_bytes: Bytes
    dense_bytes: Bytes
    changed_elements: Count | None = None
    total_elements: Count | None = None
    encode_ns: DurationNs | None = None  # First phase: encode at the publisher.
    fetch_ns: DurationNs | None = None  # Fetch, with verification if `verify_ns` is None, as in old ledgers.
    verify_ns: DurationNs | None = None  # Check hashes.
    stage_ns: DurationNs | None = None  # Decode beside the running engine.
    pause_ns: DurationNs | None = None  # Copy in while the engine stands still.
    acknowledge_ns: DurationNs | None = None  # Last phase: hash the result.
    total_ns: DurationNs
    source: str  # "trainer", "relay", "object store", "unknown", or "audit" for drift.
    route: str  # The priced route: "loopback", "intra-zone", "inter-region", "internet".
    step: Count | None = None
    sha256: str | None = None
    reason: str | None = None
    rl_run_id: Id | None = None  # The RL run of the engine. None: the event's run, or no run.


@_kind("turn")
class Turn(Event):
    """A turn of a trajectory on one engine. A preempted turn has an event for each engine."""

    fleet_run_id: Id | None = None  # The run of the device, engine and lease. None: the event's run, or the writer's.
    group_id: Id | None = None
    step: Count | None = None
    turn: Count
    attempt: Count
    outcome: Literal["completed", "preempted", "failed"]
    placement: str  # "prefix", "lease", "least_loaded" or "queue".
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    #: Output tokens without reasoning; R = output / answer. None: unknown.
    answer_tokens: Count | None = None
    queue_ns: DurationNs
    duration_ns: DurationNs


@_kind("trajectory")
class Trajectory(Event):
    """A trajectory ended. `policy_version` is the oldest version that generated its tokens."""

    group_id: Id
    step: Count
    task: str
    outcome: Literal["finished", "truncated", "lost"]
    turns: Count
    prompt_tokens: Count
    output_tokens: Count
    answer_tokens: Count | None = None
    staleness: Difference
    duration_ns: DurationNs
    tool_calls: Count | None = None  # None: unknown.
    tool_ns: DurationNs | None = None
    reason: str | None = None  # Why it was lost or truncated.


@_kind("verdict")
class Verdict(Event):
    """A verifier's verdict. `correct` is the true verdict if an audit found it, else None."""

    group_id: Id
    step: Count
    verifier: str
    verifier_version: str | None = None
    reward: float
    threshold: float
    accepted: bool
    correct: bool | None = None
    stale: bool = False  # Dropped for age or to keep the batch's shape.


#: Limits readers' work: the view `request` repeats a sampled row.
REQUESTS_PER_ROW_MAX = 1000


@_kind("request")
class Request(Event):
    """A serving request, as its engine or a replaying client saw it. `lease_id` is the device's lease at arrival."""

    request_id: Id
    outcome: Literal["completed", "failed", "aborted"]  # `aborted`: the client gave it up, or sent a faulty one.
    prompt_tokens: Count
    output_tokens: Count
    ttft_ns: DurationNs | None
    tpot_mean_ns: DurationNs | None
    tpot_max_ns: DurationNs | None
    e2e_ns: DurationNs
    ttft_budget_ns: DurationNs
    tpot_budget_ns: DurationNs
    send_delay_ns: DurationNs  # How much later than in the trace the client sent it.
    reason: str | None = None
    cached_tokens: Count | None = None  # Prompt tokens in the server's prefix cache; None: unknown.
    source: Literal["client", "engine"] | None = None  # None: the client.
    queue_ns: DurationNs | None = None  # From arrival to the first step.
    finish_reason: Literal["stop", "length", "abort"] | None = None
    priority: Difference | None = None  # Class of the request; None: no class.
    #: Number of similar requests within a second that a sampled row stands for. None: 1.
    requests: Annotated[int, Range(1, REQUESTS_PER_ROW_MAX)] | None = None


#: The seven buckets of device time in display order.
BUCKETS: tuple[str, ...] = ("serving", "rollout", "train", "sync", "activation", "headroom", "idle")
_WHOLE = Rule(
    "t1_ns", f"{' + '.join(f'{bucket}_ns' for bucket in BUCKETS)} == t1_ns - t0_ns", "t0_ns and the sum of all buckets"
)


@_kind("device_slice", needs=("device_id",), rules=(*INTERVAL, _WHOLE))
class DeviceSlice(Event):
    """How a device was used in [t0_ns, t1_ns). The seven buckets sum to exactly t1_ns - t0_ns."""

    t0_ns: InstantNs
    t1_ns: InstantNs
    serving_ns: DurationNs
    rollout_ns: DurationNs
    train_ns: DurationNs
    sync_ns: DurationNs
    activation_ns: DurationNs
    headroom_ns: DurationNs
    idle_ns: DurationNs
    overlap_ns: DurationNs = 0  # Both engines worked; half is in serving_ns, half in rollout_ns.
    beside_ns: DurationNs | None = None  # Rollouts ran on credit beside serving's steps.
    beside_work_ns: DurationNs | None = None  # Work done in beside_ns, as time on a device alone; part of rollout_ns.
    delayed_ns: DurationNs | None = None  # Delay of serving's steps against prediction.
    rollout_run_id: Id | None = None  # RL run of rollout, sync, activation and headroom time. None: the event's run.
    train_run_id: Id | None = None  # RL run of train time. A slice ends with a change of either. None: the event's run.

    def __post_init__(self) -> None:
        total = sum(getattr(self, f"{bucket}_ns") for bucket in BUCKETS)
        if total != self.t1_ns - self.t0_ns:
            raise ValueError(f"device_slice {self.device_id}: buckets sum to {total} ns, not {self.t1_ns - self.t0_ns}")


@_kind("step")
class Step(Event):
    """An RL step: rollout, update and sync. It published `policy_version`."""

    step: Count
    groups: Count
    trajectories: Count
    trajectories_accepted: Count
    reward_mean: float
    loss: float | None
    entropy: float | None
    kl: float | None
    grad_norm: float | None
    tokens_trained: Count
    rollout_ns: DurationNs
    train_ns: DurationNs
    sync_ns: DurationNs
    total_ns: DurationNs


NOT_MEASURED: Final = "not measured"


@_kind("power", rules=INTERVAL)
class Power(Event):
    """Mean power and use of a device over [t0_ns, t1_ns). If power is "not measured", `reason` says why."""

    t0_ns: InstantNs
    t1_ns: InstantNs
    power_mw: Count | None
    source: Literal["nvml-energy", "nvml-power", "rapl", "other", "not measured"]
    energy_mj: Count | None = None  # Increase of the device's energy counter, millijoules.
    package_energy_mj: Count | None = None  # Increase for the CPU packages that contain the device, millijoules.
    busy_share: Share | None = None  # Share of time with a running kernel (NVML's last sample), or of busy cores.
    memory_used_bytes: Bytes | None = None
    sm_clock_mhz: Count | None = None
    clock_reasons: str | None = None  # Limits of the GPU's clocks; empty: no limit.
    mig_instances: Count | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.power_mw is None) != (self.source == NOT_MEASURED):
            raise ValueError(f"power: source {self.source!r} does not go with power_mw {self.power_mw}")


@_kind("scale_down", durable=True, needs=("device_id",), rules=INTERVAL)
class ScaleDown(Event):
    """A person or an autoscaler kept a device or gave it up for [t0_ns, t1_ns)."""

    decision: Literal["kept", "let_go"]  # A serving device stayed to be lent; a dedicated device left.
    t0_ns: InstantNs
    t1_ns: InstantNs
    device_class: str
    decided_by: str  # A person or an autoscaler.
    reason: str | None = None


@_kind("clock", needs=("device_id",))
class Clock(Event):
    """A host's UTC minus the controller's (`offset_ns`). It is too low by the shortest delay of a message."""

    #: `heard`: first contact; `set`: changed wall clock; `moved`: drift, at most once a minute.
    action: Literal["heard", "set", "moved"]
    offset_ns: OffsetNs
    #: The agent's clock minus the wall clock of the controller. It is fixed when the host boots, so changes of the wall
    #: clock do not affect it. None: unknown.
    device_time_offset_ns: OffsetNs | None = None
    host: Id | None = None


@_kind("ledger", durable=True)
class LedgerAction(Event):
    """An action on the ledger itself, such as a compaction or a job."""

    action: str
    detail_json: str | None = None


@_kind("access", durable=True)
class Access(Event):
    """A read of the ledger, or a refusal. An event stands for `count` similar events of one peer within a second."""

    who: Id  # A token's name, or `user@host` for a command on the folder.
    action: Literal[  # `info`: views or writers' positions. `*_denied`: a token, or its scope, was missing.
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
    peer: str | None = None  # Caller's address; None for a command on the folder.
    statement: str | None = None  # The first 1,000 characters; the SHA-256 is of the whole UTF-8 text.
    statement_sha256: str | None = None
    result_rows: Count | None = None
    duration_ns: DurationNs | None = None
    count: Count | None = None
