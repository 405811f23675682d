"""The plugin's settings, from the environment of its engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PREFIX = "ROSE_PLUGIN_"
#: SGLang passes only numbers to a running engine: this name plus a number links to the page.
PAGE_LINK = "/dev/shm/rose-page-"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    role: Literal["serving", "rollout"]
    page: Path | None  # None until the engine is attached.
    staging: Path | None = None
    gated: bool = False  # Computes only if its lease and the policy allow it.
    host_cores: tuple[int, ...] = ()

    def to_environment(self) -> dict[str, str]:
        values = {
            "ROLE": self.role,
            "PAGE": "" if self.page is None else str(self.page),
            "STAGING": "" if self.staging is None else str(self.staging),
            "GATED": "1" if self.gated else "0",
            "HOST_CORES": ",".join(map(str, self.host_cores)),
        }
        return {f"{_PREFIX}{name}": value for name, value in values.items()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> PluginSettings | None:
        """Return the settings, or None if the plugin is off. The default is a serving engine without a page."""
        role = environment.get(f"{_PREFIX}ROLE") or "serving"
        if role == "off":
            return None
        if role not in ("serving", "rollout"):
            raise ValueError(f"{_PREFIX}ROLE is {role!r}; it must be 'serving', 'rollout' or 'off'")
        page, staging, cores = (environment.get(f"{_PREFIX}{name}") for name in ("PAGE", "STAGING", "HOST_CORES"))
        return cls(
            role="serving" if role == "serving" else "rollout",
            page=Path(page) if page else None,
            staging=Path(staging) if staging else None,
            gated=environment.get(f"{_PREFIX}GATED") == "1",
            host_cores=tuple(int(core) for core in (cores or "").split(",") if core),
        )
