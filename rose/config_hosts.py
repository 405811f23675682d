"""What a fleet is made of, as its file names it: hosts and devices; and what every table of the file is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rose.event_fields import AMOUNT_MAX


class Section(BaseModel):
    """A table of the file: unknown keys are refused, since a misspelt field would otherwise be silently ignored, and
    so is what has another type: `true` is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e9)]
#: A latency that serving promises: from a microsecond to an hour.
BudgetMs = Annotated[float, Field(ge=0.001, le=3_600_000)]
DayS = Annotated[float, Field(ge=0, le=86_400)]
#: Of a file's text.
PathText = Annotated[Path, Field(strict=False)]
Share = Annotated[float, Field(ge=0, le=1)]
#: What reports, exports and `rose cost --by tag:NAME` can write as it is.
TagName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,100}$")]


class HostConfig(Section):
    name: str = Field(
        description="The host's name, on screens and before the names of its ledger writers.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,30}$",
    )
    address: str | None = Field(
        default=None,
        description="IP address of its Ray node, by which the other hosts reach it. Left out where there is one host, "
        "and where `resource` finds it.",
        pattern=r"^[0-9A-Fa-f.:]+$",
    )
    resource: str | None = Field(
        default=None,
        description="A custom resource that its Ray node alone has, where addresses change, as in Kubernetes.",
        min_length=1,
    )
    cores: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list,
        description="CPU cores for what is no device's: agents, controller, HTTP. Left out: those that serve nothing.",
    )
    zone: str = Field(default="", description="Availability zone, by which the ledger prices traffic between hosts.")
    region: str = Field(default="", description="Region, likewise.")


class DeviceConfig(Section):
    id: str = Field(
        description="The device's name in the ledger, on screens and of folders: no '/' in it.",
        min_length=1,
        max_length=128,
    )
    pool: Literal["serving", "rollout"] = Field(
        description="`serving` devices run the serving engine and lend what it leaves; `rollout` devices are dedicated "
        "to rollouts, and the first of them also runs the trainer."
    )
    device_class: str = Field(description="The class the price book knows this device by.", min_length=1)
    gpu: int | None = Field(default=None, ge=0, description="CUDA device index; leave out on a host with no GPU.")
    cores: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, description="CPU cores that are the device (no GPU), or its host cores."
    )
    kv_bytes: int = Field(
        gt=0,
        le=AMOUNT_MAX,
        description="KV-cache memory of the device, in bytes, that serving and rollouts share. On a GPU each of the "
        "two has a pool of its own, of up to this size.",
    )
    host: str | None = Field(
        default=None,
        description="Name of the host that it is on, as in its `[[host]]` table; may be left out where there is one.",
    )
    serving_url: str | None = Field(
        default=None,
        description="Root URL of the SGLang server that serves on this device: ROSE attaches to it, and neither starts "
        "nor stops it. Left out, ROSE starts one itself.",
    )

    @model_validator(mode="after")
    def _can_name_a_folder(self) -> DeviceConfig:
        if "/" in self.id or self.id in (".", "..") or not self.id.isprintable():
            raise ValueError(f"device id {self.id!r} can name no folder: use letters, digits, '.', ':', '_' or '-'")
        return self

    @model_validator(mode="after")
    def _has_something_to_run_on(self) -> DeviceConfig:
        if self.gpu is None and not self.cores:
            raise ValueError(f"device {self.id!r} names neither `gpu` nor `cores`; give one of them")
        return self

    @model_validator(mode="after")
    def _names_each_core_once(self) -> DeviceConfig:
        if len(set(self.cores)) != len(self.cores):
            raise ValueError(f"device {self.id!r} names a core twice in cores {self.cores}: once is enough")
        return self

    @model_validator(mode="after")
    def _serves_where_it_says(self) -> DeviceConfig:
        if self.serving_url is not None and self.pool != "serving":
            raise ValueError(f"device {self.id!r} has pool {self.pool!r} and a serving_url: change one of them")
        if self.serving_url is not None and not re.fullmatch(r"https?://[^/?#\s]+", self.serving_url):
            raise ValueError(
                f"serving_url {self.serving_url!r} of device {self.id!r} must be a server's root, such as "
                "http://127.0.0.1:30000"
            )
        return self
