"""The configuration of a fleet, in one TOML file. It is validated here, without torch."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from rose import private_files
from rose.config import checks
from rose.errors import UserError, did_you_mean
from rose.event_fields import AMOUNT_MAX

_SECRET = (".token", ".url", "_env")
_PASSWORD = re.compile(r"//[^/]*@")


def explain(error: ValidationError, file: type[BaseModel]) -> str:
    """Return a line for each wrong field: path, fault, and the value if it cannot be secret."""
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "(the file)"
        if item["type"] == "extra_forbidden":
            *place, name = item["loc"]  # The value of a misspelt name may be a token.
            lines.append(f"  {where}: no such field{did_you_mean(str(name), _fields_at(place, file))}")
            continue
        hidden = isinstance(item["input"], dict | list) or where.endswith(_SECRET)
        value = "" if hidden else f" (got {_PASSWORD.sub('//...@', repr(item['input']))})"
        lines.append(f"  {where}: {item['msg'].removeprefix('Value error, ')}{value}")
    return "\n".join(lines)


def _fields_at(place: Iterable[int | str], file: type[BaseModel]) -> set[str]:
    tables = [file]
    for name in place:
        # Other parts are numbers, table names, and the kind of a table in a list.
        fields = [field for table in tables if (field := _fields(table).get(str(name))) is not None]
        tables = [inner for field in fields for inner in _tables(field.annotation)] or tables
    return {name for table in tables for name in _fields(table)}


def _fields(table: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in table.model_fields.items()}


def _tables(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for part in get_args(annotation) for table in _tables(part)]


class Section(BaseModel):
    """A table of the file. Unknown keys are refused, because a misspelt field would have no effect."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e9)]
BudgetMs = Annotated[float, Field(ge=0.001, le=3_600_000)]
DayS = Annotated[float, Field(ge=0, le=86_400)]
PathText = Annotated[Path, Field(strict=False)]
Text = Annotated[str, Field(min_length=1)]
IpAddress = Annotated[str, Field(pattern=r"^[0-9A-Fa-f.:]+$")]
Share = Annotated[float, Field(ge=0, le=1)]
HalfShare = Annotated[float, Field(ge=0, le=0.5)]
Stretch = Annotated[float, Field(ge=1, le=100)]
#: Reports and exports write such a name unchanged.
TagName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,100}$")]
_HOST_NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,30}"
TagText = Annotated[str, Field(min_length=1, max_length=200)]
HostName = Annotated[str, Field(pattern=f"^{_HOST_NAME}$")]
Cores = list[Annotated[int, Field(ge=0)]]
Port = Annotated[int, Field(ge=1, le=65535)]
Pool = Literal["serving", "rollout"]


class HostConfig(Section):
    name: HostName = Field(description="Name of the host, on screens and in its ledger writers' names.")
    address: IpAddress | None = Field(
        default=None, description="IP address of its Ray node. Not needed for one host, or with `resource`."
    )
    resource: Text | None = Field(
        default=None, description="Ray resource that only this node has. Name it if the node's address may change."
    )
    cores: Cores = Field(default=[], description="Cores for agents and HTTP. Default: all cores that do not serve.")
    zone: str = Field(default="", description="Availability zone, for prices of traffic between hosts.")
    region: str = Field(default="", description="Region, for prices of traffic between hosts.")


class DeviceConfig(Section):
    id: Text = Field(max_length=128, description="Name in the ledger, on screens and in paths: without '/'.")
    pool: Pool = Field(
        description="`serving` devices serve and lend. `rollout` devices run rollouts; the first also runs a trainer."
    )
    device_class: Text = Field(description="Class of the device in the price book.")
    gpu: int | None = Field(default=None, ge=0, description="CUDA device index. Leave it out on a host without a GPU.")
    cores: Cores = Field(default=[], description="The cores of the device or, with `gpu`, of its processes.")
    kv_bytes: int = Field(
        gt=0,
        le=AMOUNT_MAX,
        description="KV-cache bytes that serving and rollouts share. On a GPU, each has a pool of up to this size.",
    )
    host: str | None = Field(default=None, description="Name of the host's `[[host]]` table. Needed for several hosts.")
    serving_url: str | None = Field(
        default=None, description="Root URL of an SGLang server to attach to. Default: ROSE starts a server."
    )
    serving_model: str | None = Field(
        default=None, description="Name of the device's `[serving_models.NAME]` table. Default: `[serving]`."
    )

    @property
    def serving_table(self) -> str:
        return "serving" if self.serving_model is None else f"serving_models.{self.serving_model}"

    @model_validator(mode="after")
    def _is_sound(self) -> DeviceConfig:
        if "/" in self.id or self.id in (".", "..") or not self.id.isprintable():
            raise ValueError(f"device id {self.id!r} is not a folder name: use letters, digits, '.', ':', '_' or '-'")
        if self.gpu is None and not self.cores:
            raise ValueError(f"device {self.id!r} has neither `gpu` nor `cores`: give one of them")
        if len(set(self.cores)) != len(self.cores):
            raise ValueError(f"device {self.id!r} has a core twice in cores {self.cores}: remove the repeat")
        for name in ("serving_url", "serving_model"):
            if getattr(self, name) is not None and self.pool != "serving":
                raise ValueError(f"device {self.id!r} has pool {self.pool!r} and a {name}: change one of them")
        if self.serving_url is not None and not re.fullmatch(r"https?://[^/?#\s]+", self.serving_url):
            raise ValueError(f"serving_url {self.serving_url!r} must be a server's root, as in http://127.0.0.1:30000")
        return self


DOCUMENTED_TOKEN = "0f5c9d1e7a3b48e26d0c8f1b5a9e3d72"


class ConfigError(UserError):
    """A configuration cannot be used. The message names the file, the field and the value."""


def _absolute_path(path: Path) -> Path:
    return path.expanduser().absolute()


def _absolute_text(path: str) -> str:
    return str(_absolute_path(Path(path)))


def _whole_path(place: str) -> str:
    """Return an absolute path. URLs and paths that begin with `~` stay as they are."""
    return place if "://" in place or place.startswith("~") else str(Path(place).absolute())


TraceText = Annotated[str, AfterValidator(lambda name: name if name in ("none", "bursty") else _whole_path(name))]
PlaceText = Annotated[Text, AfterValidator(_whole_path)]
HostText = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]+(/\d{1,3})?$", max_length=253)]
ProgramText = Annotated[str, AfterValidator(_absolute_text)]
FileText = Annotated[PathText, AfterValidator(_absolute_path)]
# Readers of a file may be in other folders.
PriceBookText = Annotated[str, AfterValidator(lambda name: _absolute_text(name) if name.endswith(".toml") else name)]


class RequestClassConfig(Section):
    priority: int = Field(ge=-(2**31), lt=2**31, description="Value of `priority` in SGLang's API.")
    ttft_budget_ms: BudgetMs = Field(description="Promised time to first token, in milliseconds.")
    tpot_budget_ms: BudgetMs = Field(description="Promised time of each further token, in milliseconds.")


def _with_distinct_priorities(classes: list[RequestClassConfig]) -> list[RequestClassConfig]:
    priorities = [request_class.priority for request_class in classes]
    if len(set(priorities)) != len(priorities):
        raise ValueError(f"priorities of classes must differ, got {priorities}")
    return classes


class ServingConfig(Section):
    model: str = Field(
        default="smollm2-135m-instruct",
        description="Hugging Face checkpoint folder or id, or `smollm2-135m-instruct` for the built-in small model.",
    )
    ttft_budget_ms: BudgetMs = Field(default=500, description="Promised time to first token, in milliseconds.")
    tpot_budget_ms: BudgetMs = Field(default=50, description="Promised time of each further token, in milliseconds.")
    classes: Annotated[list[RequestClassConfig], AfterValidator(_with_distinct_priorities)] = Field(
        default=[],
        max_length=8,
        description="Budgets by the `priority` of a request, as in [{ priority = 1, ttft_budget_ms = 200, "
        "tpot_budget_ms = 20 }]. Other requests have the budgets above. Lending leaves room for the smallest TTFT "
        "budget.",
    )
    max_prompt_tokens: PositiveInt = Field(
        default=128, description="Longest serving prompt, in tokens. Rollouts leave time for its prefill."
    )
    max_total_tokens: PositiveInt | None = Field(
        default=None, description="KV-cache slots, in tokens. Default: all of `kv_bytes` on a GPU, 8192 on cores."
    )
    port: Port | None = Field(
        default=None, description="HTTP port of the first serving device; others have the next ports. Default: free."
    )
    extra_args: list[str] = Field(default=[], description="More arguments for `sglang.launch_server`.")


class RolloutConfig(Section):
    model: str = Field(
        default="frozenlake-tiny",
        description="The policy: `frozenlake-tiny` for the built-in model, or a Hugging Face checkpoint folder or id.",
    )
    max_total_tokens: PositiveInt | None = Field(
        default=None, description="KV-cache slots. Default: `kv_bytes` minus headroom on a GPU, 32768 on cores."
    )
    tokenizer: bool = Field(
        default=True, description="False: engines take token ids only, and refuse `stop`, grammars and minimum lengths."
    )
    prefill_chunk_tokens: PositiveInt = Field(default=512, description="Largest rollout prefill step, in tokens.")
    max_concurrent: PositiveInt = Field(default=64, description="Maximum turns in flight on one rollout engine.")
    extra_args: list[str] = Field(default=[], description="More arguments for `sglang.launch_server`.")


class CoservingConfig(Section):
    enabled: bool = Field(default=True, description="False keeps rollouts off serving devices.")
    policy: Literal["rose", "solo", "share_all", "static_split"] = Field(
        default="rose",
        description="How a device is shared. `rose` lends within serving's slack. For comparison: `solo` lends "
        "nothing, `share_all` lends regardless of serving, `static_split` lends a fixed share of time and memory.",
    )
    headroom: Share = Field(default=0.2, description="Share of a device's KV memory that stays free for serving.")
    high_watermark: Share = Field(default=0.5, description="Memory is short when this share of headroom is used.")
    lease_ttl_s: DayS = Field(default=3.0, gt=0, description="A lease ends this long after its last renewal.")
    heartbeat_s: DayS = Field(default=0.5, gt=0, description="Interval of renewals and load reports.")
    compute_share: Share = Field(default=1.0, description="Largest share of a device's time for rollouts.")
    regret_share: Share = Field(default=0.05, description="Largest delay by lending, as a share of a request's time.")
    stretch: Stretch = Field(
        default=1.25,
        description="Largest mean factor by which lending may slow a live request's tokens; 1: lend only in idle time.",
    )
    slack_share: Share = Field(default=1.0, description="Share of latency slack that lending beside requests may use.")
    holdout_share: HalfShare = Field(
        default=0.05,
        description="Share of time without lending, in random windows, to measure what lending costs serving. Lent "
        "time shrinks by the same share. With 0 the cost cannot be measured.",
    )
    holdout_window_s: DayS = Field(default=120.0, gt=0, description="Length of a window, in seconds.")
    holdout_washout_s: DayS = Field(
        default=60.0, description="Seconds after a lease in which requests are not compared; at most half of a window."
    )
    holdout_seed: int = Field(default=0, ge=0, lt=1 << 31, description="Seed of the random windows.")
    recorded_requests_per_s_max: PositiveFloat = Field(
        default=20.0,
        description="Maximum rows per second that a device records for serving requests. Above this rate, one row "
        "stands for several requests.",
    )
    activation: Literal["resident", "leased"] = Field(
        default="resident",
        description="When a rollout engine keeps its memory on a lent GPU. `resident`: always. `leased`: during "
        "syncs and leases, which then begin up to 5 s later; at other times the memory is on the host.",
    )
    drift_audit_s: DayS = Field(
        default=300.0, description="Seconds between syncs or checks of an engine's weights. Drift is repaired. 0: off."
    )
    meter_s: DayS = Field(default=1.0, description="Seconds between readings of power and use of a device. 0: off.")

    @model_validator(mode="after")
    def _renewed_in_time(self) -> CoservingConfig:
        if self.heartbeat_s * 2 > self.lease_ttl_s:
            raise ValueError(
                f"heartbeat_s {self.heartbeat_s} must be at most half of lease_ttl_s {self.lease_ttl_s}, or a late "
                f"heartbeat ends a lease"
            )
        if self.holdout_washout_s * 2 > self.holdout_window_s:
            window = f"holdout_window_s {self.holdout_window_s}"
            raise ValueError(f"holdout_washout_s {self.holdout_washout_s} must be at most half of {window}")
        if 0 < self.meter_s < 0.1:
            raise ValueError(f"meter_s {self.meter_s} must be 0 or at least 0.1: meters move in steps of up to 0.1 s")
        return self


class TrafficConfig(Section):
    trace: TraceText = Field(
        default="none",
        description="Serving traffic of the demo: a CSV file in the columns of the public Azure LLM inference traces, "
        "or `bursty` for the sample trace.",
    )
    requests_per_s_max: PositiveFloat = Field(default=0.9, description="Maximum mean rate. The surplus is dropped.")
    prompt_tokens_max: PositiveInt = Field(default=48, description="99th percentile of prompt lengths, after scaling.")
    output_tokens_max: PositiveInt = Field(default=10, description="99th percentile of output lengths, after scaling.")
    seed: int = Field(default=5, description="Seed that decides which requests are dropped, and the prompts' text.")


class TaskConfig(Section):
    environment: Annotated[str, Field(pattern=r"^[\w./@-]+(:[\w./@:-]+)?$")] = Field(
        default="frozenlake",
        description="`frozenlake`, `arithmetic`, `gymnasium:ID`, `verifiers:NAME`, or an entry point of "
        "`rose.environments`. All but `frozenlake` need a chat model as `rollout.model`.",
    )
    options: dict[str, Any] = Field(
        default={}, description="Arguments of the environment, as in { digits = 3 }. Not for `frozenlake`."
    )
    python: ProgramText | None = Field(
        default=None,
        description="Python interpreter for the environment, such as one in a virtualenv. Default: the trainer's.",
    )
    threshold: float | None = Field(
        default=None, description="Smallest reward of an accepted trajectory. Default: the environment's."
    )
    recheck_share: Share = Field(
        default=0.1, description="Share of accepted trajectories that `recheck` judges again, to measure precision."
    )
    answer_tokens_max: PositiveInt = Field(default=256, description="Maximum tokens of a turn. Not for `frozenlake`.")
    call_s_max: PositiveFloat = Field(default=30.0, description="Maximum seconds of an environment's step, with tools.")
    memory_mb_max: PositiveInt = Field(default=1024, description="Maximum memory of a trajectory's environment, in MB.")
    observation_bytes_max: PositiveInt = Field(default=65_536, description="Maximum bytes of a step's observation.")
    size: int = Field(default=4, ge=3, le=8, description="Side of the lake.")
    frozen_share: Share = Field(default=0.8, description="Probability that a tile is ice rather than a hole.")
    slippery: bool = Field(default=False, description="Whether a move may slip sideways.")
    turns_max: PositiveInt = Field(default=10, description="A trajectory is truncated after this many turns.")
    trajectories_max: PositiveInt = Field(default=128, description="Maximum trajectories in parallel.")


class TrainingConfig(Section):
    steps: PositiveInt = Field(default=10, description="RL steps to run.")
    groups_per_step: PositiveInt = Field(default=28, description="Groups (starting states) in a step.")
    group_size: int = Field(default=8, ge=2, description="Trajectories of a group.")
    learning_rate: PositiveFloat = Field(default=2e-4, description="Learning rate of AdamW.")
    clip_low: PositiveFloat = Field(default=0.2, description="Lower clip of the probability ratio.")
    clip_high: PositiveFloat = Field(default=0.28, description="Upper clip of the probability ratio.")
    minibatches: PositiveInt = Field(default=4, description="Optimiser steps in an RL step.")
    temperature: PositiveFloat = Field(default=1.0, description="Sampling temperature of rollouts.")
    staleness_max: int = Field(default=1, ge=0, description="Maximum age, in versions, of a token that is trained on.")
    threads: PositiveInt = Field(default=1, description="Threads of the trainer.")
    seed: int = Field(default=0, description="Seed of maps, sampling and warm start.")


class GatewayConfig(Section):
    host: str = Field(default="127.0.0.1", description="Address that the rollout gateway binds.")
    port: Port | None = Field(default=None, description="HTTP port. Default: a free port.")
    token: Annotated[str, AfterValidator(private_files.check_token)] | None = Field(
        default=None, description="Bearer token from `openssl rand -hex 32`, required unless `host` is loopback."
    )
    tokens: FileText | None = Field(default=None, description="File of named tokens, from `rose token create`.")

    @model_validator(mode="after")
    def _token_beyond_loopback(self) -> GatewayConfig:
        if self.host not in ("127.0.0.1", "localhost", "::1") and not self.token:
            raise ValueError(f"host {self.host!r} is reachable from other machines: set `token`, or bind 127.0.0.1")
        return self


class OriginsConfig(Section):
    files: bool = Field(default=False, description="Whether runs may publish `file:///FOLDER`, which each host reads.")
    hosts: list[HostText] = Field(
        default=[],
        description="Names, addresses or networks that may send weights although they are loopback, link-local, "
        "unspecified, multicast or a cloud's metadata service. A client on the controller's host may always publish "
        "at loopback.",
    )


class ArchiveConfig(Section):
    to: PlaceText | None = Field(
        default=None,
        description="Destination for old events of the ledger: a folder of the first host, or a URL such as "
        "s3://bucket/prefix. Default: none, and the ledger grows.",
    )
    after_days: float | None = Field(default=None, gt=0, le=36_500, description="Days after which events are archived.")
    delete: bool = Field(default=False, description="Remove archived events from the ledger.")

    @model_validator(mode="after")
    def _whole(self) -> ArchiveConfig:
        # An error of the whole section does not repeat the value.
        if self.to is not None and urlsplit(self.to).password:
            raise ValueError("`to` has a password, which the ledger would record: set it in the store's own settings")
        if self.to is None and (self.after_days is not None or self.delete):
            setting = "delete true" if self.after_days is None else f"after_days {self.after_days}"
            raise ValueError(f"{setting} needs a destination: give `to`, or remove {setting}")
        if self.to is not None and self.after_days is None:
            raise ValueError(f"`to` is {self.to!r}, but `after_days` is missing: give the age of events to archive")
        return self


class FleetConfig(Section):
    name: str = Field(default="demo", pattern=r"^\w[\w.-]*$", description="Name of the fleet, in files and on screens.")
    ledger: PathText = Field(default=Path("ledger"), description="Folder of the ledger; created if it does not exist.")
    host: str = Field(
        default="",
        pattern=rf"^({_HOST_NAME})?$",
        description="Name of this host for its ledger writers. Needed if several hosts share a ledger.",
    )
    cache: PathText = Field(default=Path("~/.cache/rose"), description="Folder for models that ROSE creates.")
    price_book: PriceBookText | None = Field(
        default=None,
        description="Price book of the run: a TOML file, or `example` for invented prices. Default: the ledger's "
        "adopted book (`rose price FILE --adopt`), or ROSE_PRICE_BOOK.",
    )
    tags: dict[TagName, TagText] = Field(
        default={},
        description='`team` pays for rollouts, `serving_team` for serving, as in { team = "research", serving_team = '
        '"chat" }. Exports show other tags unchanged.',
    )
    state: PathText = Field(default=private_files.STATE, description="Folder on each host for memory and logs.")
    hosts: list[HostConfig] = Field(
        default=[],
        description="Several hosts, as `[[host]]` tables in place of the field `host`. The first host has the "
        "controller and the ledger.",
    )
    device: list[DeviceConfig] = Field(description="The devices, at least one of each pool.", min_length=1)
    serving: ServingConfig = Field(default=ServingConfig(), description="The serving engine.")
    serving_models: dict[TagName, ServingConfig] = Field(
        default={}, description="Other serving engines: `[serving_models.NAME]` tables with the fields of `[serving]`."
    )
    rollout: RolloutConfig = Field(default=RolloutConfig(), description="The rollout engines.")
    rollout_models: dict[TagName, RolloutConfig] = Field(
        default={},
        description="Other models of runs: `[rollout_models.NAME]` tables with the fields of `[rollout]`. Every device "
        "can have each model, but only one at a time. To change the model, the device's engine restarts.",
    )
    coserving: CoservingConfig = Field(default=CoservingConfig(), description="Lending of devices.")
    traffic: TrafficConfig = Field(default=TrafficConfig(), description="Serving traffic to replay.")
    task: TaskConfig = Field(default=TaskConfig(), description="Task of the policy.")
    training: TrainingConfig = Field(default=TrainingConfig(), description="The RL loop.")
    gateway: GatewayConfig = Field(default=GatewayConfig(), description="The rollout gateway.")
    origins: OriginsConfig = Field(default=OriginsConfig(), description="Sources of published versions.")
    archive: ArchiveConfig = Field(default=ArchiveConfig(), description="Archive of old events.")

    @model_validator(mode="before")
    @classmethod
    def _tables_of_hosts(cls, data: Any) -> Any:
        # The field `host` names a single host.
        if isinstance(data, dict) and isinstance(data.get("host"), list) and "hosts" not in data:
            return {**{name: value for name, value in data.items() if name != "host"}, "hosts": data["host"]}
        return data

    @model_validator(mode="after")
    def _can_run(self) -> FleetConfig:
        checks.check(self)
        return self

    @property
    def rollouts(self) -> dict[str, RolloutConfig]:
        """Return the tables of rollout models by name, the default first."""
        tables = {f"rollout_models.{name}": table for name, table in self.rollout_models.items()}
        return {"rollout": self.rollout, **tables}

    def serving_on(self, device: DeviceConfig) -> ServingConfig:
        return self.serving if device.serving_model is None else self.serving_models[device.serving_model]


def load(path: Path) -> FleetConfig:
    """Return the fleet in a TOML or `.json` file, with absolute folders. Raises ConfigError with all wrong fields."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}. Create it with `rose config > {path}`.")
    except UnicodeDecodeError as error:
        raise ConfigError(f"config {path} is not UTF-8 text: {error}")
    config = parse(text, str(path))
    folders = {name: Path(_whole_path(str(getattr(config, name)))) for name in ("ledger", "state", "cache")}
    return config.model_copy(update=folders)


def warnings(config: FleetConfig, path: Path) -> list[str]:
    """Return warnings about secrets that others can read. Raises OSError."""
    lines, token = list[str](), config.gateway.token
    if token == DOCUMENTED_TOKEN:
        lines.append(f"{path}: gateway.token is the documentation's example: make your own with `openssl rand -hex 32`")
    if token is not None and (problem := private_files.open_to_others(path)) is not None:
        lines.append(f"{path} has gateway.token and {problem}")
    return lines


def parse(text: str, source: str) -> FleetConfig:
    """Return the fleet that `text` describes. `source` is the text's name in error messages. Raises ConfigError."""
    form, read = ("JSON", json.loads) if source.endswith(".json") else ("TOML", tomllib.loads)
    try:
        data = read(text)
    except ValueError as error:
        raise ConfigError(f"config {source} is not valid {form}: {error}")
    return validated(data, source)


def validated(data: dict[str, object], source: str) -> FleetConfig:
    """Return the fleet that the table `data` describes. Raises ConfigError, which calls this table `source`."""
    try:
        return FleetConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"config {source}:\n{explain(error, FleetConfig)}")
