"""What the plugin is told through the environment of the engine it is loaded into."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PREFIX = "ROSE_PLUGIN_"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """`gated` engines run a step only under a lease and only when serving's slack allows it."""

    role: Literal["serving", "rollout"]
    page: Path
    staging: Path
    gated: bool

    def to_environment(self) -> dict[str, str]:
        return {
            f"{_PREFIX}ROLE": self.role,
            f"{_PREFIX}PAGE": str(self.page),
            f"{_PREFIX}STAGING": str(self.staging),
            f"{_PREFIX}GATED": "1" if self.gated else "0",
        }

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> PluginSettings | None:
        """None in an SGLang server that ROSE did not start: the plugin then does nothing."""
        role = environment.get(f"{_PREFIX}ROLE")
        if role is None:
            return None
        if role not in ("serving", "rollout"):
            raise ValueError(f"{_PREFIX}ROLE is {role!r}; it must be 'serving' or 'rollout'")
        return cls(
            role="serving" if role == "serving" else "rollout",
            page=Path(environment[f"{_PREFIX}PAGE"]),
            staging=Path(environment[f"{_PREFIX}STAGING"]),
            gated=environment[f"{_PREFIX}GATED"] == "1",
        )
