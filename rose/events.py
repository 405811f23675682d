"""The vocabulary of the ledger: one class for each kind of event. Events are facts and never change; a correction is a
new event. `at_us` is UTC microseconds since the epoch, `t0_ns` and `t1_ns` are UTC nanoseconds, other `*_ns` are
integer nanoseconds, `*_bytes` bytes. A device's agent records by the device's clock, see `Clock`. None: unknown, or
does not apply. Types and `rules` say what fields may hold; a ledger refuses an event that breaks one."""

import dataclasses
import typing
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    kind: ClassVar[str]
    durable: ClassVar[bool] = False  # Whether it must be on disk before its act is acknowledged.
    needs: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()

    at_us: InstantUs = dataclasses.field(default_factory=utc_us)
    event_id: Id | None = None  # Chosen by the client; a retried event counts once. None: the ledger makes one.
    run_id: Id | None = None  # None: the run of the writer.
    device_id: Id | None = None
    engine_id: Id | None = None
    lease_id: Id | None = None
    trajectory_id: Id | None = None
    policy_version: Count | None = None


class Record(typing.Protocol):
    """Where events go, such as a writer's `record`. `durable` None means what the event's kind says."""

    def __call__(self, event: Event, *, durable: bool | None = None) -> object: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleDown(Event):
    """Decisions of lending about a device over [t0_ns, t1_ns)."""

    kind: ClassVar[str] = "scale_down"
    durable: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    rules: ClassVar[tuple[Rule, ...]] = INTERVAL
    decision: Literal["kept", "let_go"]  # A serving device stayed to be lent; a dedicated one was given up to borrow.
    t0_ns: InstantNs
    t1_ns: InstantNs
    device_class: str
    decided_by: str  # A person or an autoscaler.
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock(Event):
    """The offset of a device's host's clocks from the controller's, until the device's next such event. The measured
    offset is too low by the delay of the quickest recent message."""

    kind: ClassVar[str] = "clock"
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    #: `heard`: first contact. `set`: a wall clock was set. `moved`: drift, or a quicker message; at most once a minute.
    action: Literal["heard", "set", "moved"]
    offset_ns: OffsetNs
    #: The agent's clock less the controller's wall clock. It is fixed at the host's boot, never before the device's
    #: last record, and ignores later changes of the wall clock. None: the agent did not say.
    device_time_offset_ns: OffsetNs | None = None
    host: Id | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerAction(Event):
    """The ledger about itself: compactions, dropped events, jobs and their results."""

    kind: ClassVar[str] = "ledger"
    durable: ClassVar[bool] = True
    action: str
    detail_json: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Access(Event):
    """A read of the ledger, or its refusal. A gateway writes one for each query and refusal; `count` above 1 stands for
    equal refusals of one peer, or its looks at writers, within a second."""

    kind: ClassVar[str] = "access"
    durable: ClassVar[bool] = True
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


NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Power(Event):
    """Power and use of a device over [t0_ns, t1_ns): mean power in milliwatts. `power_mw` is None exactly where
    `source` is "not measured"; `reason` says why."""

    kind: ClassVar[str] = "power"
    rules: ClassVar[tuple[Rule, ...]] = INTERVAL
    t0_ns: InstantNs
    t1_ns: InstantNs
    power_mw: Count | None
    source: Literal["nvml-energy", "nvml-power", "rapl", "other", "not measured"]
    energy_mj: Count | None = None  # Increase of the device's energy counter, millijoules.
    package_energy_mj: Count | None = None  # Increase for the CPU packages that contain the device, millijoules.
    busy_share: Share | None = None  # Share of time that the GPU ran a kernel (NVML's last sample), or cores worked.
    memory_used_bytes: Bytes | None = None
    sm_clock_mhz: Count | None = None
    clock_reasons: str | None = None  # Why the GPU's clocks are limited, in words; empty: not limited.
    mig_instances: Count | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.power_mw is None) != (self.source == NOT_MEASURED):
            raise ValueError(f"power: source {self.source!r} does not go with power_mw {self.power_mw}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run(Event):
    """A run began or ended. `config_json` is the whole configuration, `host_json` describes the host."""

    kind: ClassVar[str] = "run"
    durable: ClassVar[bool] = True
    action: Literal["started", "ended", "failed"]
    name: str
    config_json: str | None = None
    host_json: str | None = None
    tags_json: str | None = None  # The fleet file's tags, a flat JSON object of strings: `team` and `serving_team` pay.
    fleet_run_id: Id | None = None  # The fleet's run of an RL run on a shared fleet. None: its own.
    reason: str | None = None
    trace: str | None = None  # Name of serving traffic's trace. Every latency figure comes with these five facts.
    trace_keep_share: Share | None = None  # Kept share of its requests.
    trace_length_scale: float | None = None  # Factor of prompt lengths.
    trace_output_length_scale: float | None = None  # Factor of output lengths.
    trace_time_scale: float | None = None  # Factor of gaps between requests.


@dataclass(frozen=True, kw_only=True, slots=True)
class Device(Event):
    """A device joined or left the fleet; it is provisioned between. One that joins again keeps its pool and class."""

    kind: ClassVar[str] = "device"
    durable: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("device_id",)
    action: Literal["joined", "left"]
    t_ns: InstantNs
    pool: Literal["serving", "rollout", "train"]
    device_class: str  # Such as "h100-sxm" or "cpu-core".
    memory_bytes: Bytes | None = None
    #: Identity across runs: UUID of the GPU or MIG instance, else host and place, such as "node-3/cores-0-7". None:
    #: unknown, and equal to no device of another run.
    hardware_id: Id | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine(Event):
    """An engine's life. `memory_mechanism` and `compute_mechanism` name the means of sharing."""

    kind: ClassVar[str] = "engine"
    durable: ClassVar[bool] = True
    #: `attached`, `detached`: an owner's engine came to the device's page, or left it; `refused`: it cannot
    #: share, for the reason. `activated`, `deactivated`: `moved_bytes` of a rollout engine's memory came or left.
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
    """A change of a lease. Exactly one of released, preempted or expired closes it."""

    kind: ClassVar[str] = "lease"
    durable: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("lease_id",)
    action: Literal[  # `throttled`: compute and regret shares were halved; `restored`: one such halving was undone.
        "granted", "renewed", "throttled", "restored", "resized", "frozen", "released", "preempted", "expired"
    ]
    kv_budget_bytes: Bytes
    compute_share: Share
    expires_at_us: InstantUs
    step: Count | None = None
    reason: str | None = None
    regret_share: Share | None = None  # Share by which lending may prolong a serving request.
    rl_run_id: Id | None = None  # The RL run of the engine. None: the event's run, or nobody.


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemption(Event):
    """Serving took something back from a rollout engine. `yield`: running steps waited between layers, `count` times
    within a second, for `duration_ns` together. `cut`: the KV budget was reduced, and requests that no longer fit ended
    with their tokens, in `duration_ns`. `revoke`: the whole lease ended."""

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
    longest_ns: DurationNs | None = None
    latency_ns: DurationNs | None = None  # The longest from serving's wish until the rollout was off the device.
    latency_mean_ns: DurationNs | None = None  # Their mean.
    returned_bytes: Bytes | None = None
    rl_run_id: Id | None = None  # The RL run of the engine. None: the event's run, or nobody.


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold(Event):
    """Rollouts with work were refused the device for one reason: `count` times within a second, or once without a lease
    for as long as turns waited."""

    kind: ClassVar[str] = "hold"
    reason: str  # Such as "serving_step", "prefill_slack" or "regret"; "withheld": at random.
    step: Count | None = None
    count: Count
    duration_ns: DurationNs
    rl_run_id: Id | None = None  # The RL run of the engine. None: the event's run, or nobody.
    explanation: str | None = None  # The reason in the owner's words, without a lease.


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdout(Event):
    """Whether leases are withheld at random in [t0_ns, t1_ns) of a serving device: where `draw`, of the seed, the
    device and the window's number t0_ns // window_ns, is below `holdout_share`. A late agent's window begins late."""

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
    washout_ns: DurationNs  # For so long after a change the old state still has effects.


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime(Event):
    """How well an engine's step times are predicted; admission relies on it."""

    kind: ClassVar[str] = "step_time"
    role: Literal["serving", "rollout"]
    mode: Literal["prefill", "decode"]
    steps: Count  # Steps since the last such event, of both modes.
    error_share: float  # Recent mean of |predicted - measured| / measured.


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync(Event):
    """An engine was brought to `policy_version`, failed to, or drifted from it: then `reason` says why."""

    kind: ClassVar[str] = "sync"
    durable: ClassVar[bool] = True
    ok: bool
    base_version: Count | None
    encoding: Literal["delta", "dense"]
    wire_bytes: Bytes
    dense_bytes: Bytes
    changed_elements: Count | None = None
    total_elements: Count | None = None
    encode_ns: DurationNs | None = None  # First phase: encode at the publisher.
    fetch_ns: DurationNs | None = None  # Fetch; includes verification where `verify_ns` is None, as in old ledgers.
    verify_ns: DurationNs | None = None  # Check hashes.
    stage_ns: DurationNs | None = None  # Decode beside the running engine.
    pause_ns: DurationNs | None = None  # Copy in while the engine stands still.
    acknowledge_ns: DurationNs | None = None  # Last phase: hash the result and tell the origin.
    total_ns: DurationNs
    source: str  # "trainer", "relay", "object store", or "audit" for a drift that was found.
    route: str  # The priced route: "loopback", "intra-zone", "inter-region", "internet".
    step: Count | None = None
    sha256: str | None = None
    reason: str | None = None
    rl_run_id: Id | None = None  # The RL run of the engine. None: the event's run, or nobody.


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn(Event):
    """One turn of a trajectory on one engine. A turn cut by preemption has a row for each engine it ran on."""

    kind: ClassVar[str] = "turn"
    fleet_run_id: Id | None = None  # The run of its device, engine and lease. None: its own, or the writer's.
    group_id: Id | None = None
    step: Count | None = None
    turn: Count
    attempt: Count
    outcome: Literal["completed", "preempted", "failed"]
    placement: str  # "prefix", "lease", "least_loaded" or "queue".
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    #: Output tokens of the move, without reasoning; R = output / answer. None: unknown.
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
    answer_tokens: Count | None = None
    staleness: Difference
    duration_ns: DurationNs
    tool_calls: Count | None = None  # None: the trainer did not say.
    tool_ns: DurationNs | None = None
    reason: str | None = None  # Why it was lost, or cut short.


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict(Event):
    """The verifier's verdict on a trajectory. `correct` is ground truth where it is known (an audit), else None."""

    kind: ClassVar[str] = "verdict"
    group_id: Id
    step: Count
    verifier: str
    verifier_version: str | None = None
    reward: float
    threshold: float
    accepted: bool
    correct: bool | None = None
    stale: bool = False  # Dropped for age or to keep the batch's shape: its tokens are stale, not rejected.


#: A row of a sample is repeated in the view `request`, so this bounds the work of a reader.
REQUESTS_PER_ROW_MAX = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(Event):
    """A serving request, from the engine that served it, or from its client where that records it (replayed traffic).
    `lease_id` is the lease in force on the device at its arrival."""

    kind: ClassVar[str] = "request"
    request_id: Id
    outcome: Literal["completed", "failed", "aborted"]  # `aborted`: its client gave it up, or made a mistake.
    prompt_tokens: Count
    output_tokens: Count
    ttft_ns: DurationNs | None
    tpot_mean_ns: DurationNs | None
    tpot_max_ns: DurationNs | None
    e2e_ns: DurationNs
    ttft_budget_ns: DurationNs
    tpot_budget_ns: DurationNs
    send_delay_ns: DurationNs  # How late the client sent it by the trace: not the server's fault.
    reason: str | None = None
    cached_tokens: Count | None = None  # Prompt tokens in the server's prefix cache; None: it did not say.
    source: Literal["client", "engine"] | None = None  # Who measured it. None: its client.
    queue_ns: DurationNs | None = None  # From its arrival until its first step.
    finish_reason: Literal["stop", "length", "abort"] | None = None
    priority: Difference | None = None  # Its class. None: it named none.
    #: A sampled row stands for so many requests of one second, which are alike but for times and tokens. None: 1.
    requests: Annotated[int, Range(1, REQUESTS_PER_ROW_MAX)] | None = None


#: The seven buckets of device time, in the order they are shown.
BUCKETS: tuple[str, ...] = ("serving", "rollout", "train", "sync", "activation", "headroom", "idle")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSlice(Event):
    """The use of every nanosecond of [t0_ns, t1_ns) of a device; the seven buckets sum to t1_ns - t0_ns exactly."""

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
    overlap_ns: DurationNs = 0  # Time both engines worked; half each is inside serving_ns and rollout_ns.
    beside_ns: DurationNs | None = None  # Time rollouts ran on credit beside serving's steps; the rest is serving's.
    beside_work_ns: DurationNs | None = (
        None  # Their work in that time, inside rollout_ns: its time alone on the device.
    )
    delayed_ns: DurationNs | None = None  # How much longer serving's steps beside it took than predicted.
    rollout_run_id: Id | None = None  # RL run of rollout, sync, activation and headroom time. None: the event's run.
    train_run_id: Id | None = None  # RL run of train time. A slice ends where either changes. None: the event's run.

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
        LedgerAction,
        Access,
    )
}
