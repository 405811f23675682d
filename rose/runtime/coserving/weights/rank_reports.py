"""What the ranks of an engine reported of one phase of a sync, taken together."""

from __future__ import annotations

from typing import Any

from rose.runtime.transfer.errors import TransferError


def check_agreement(version: int, committed: list[dict[str, Any]]) -> None:
    """Raise TransferError unless all ranks hold the same weights, swapped in after the same step."""
    ends = {(report["after_step"], report["sha256"]) for report in committed}
    if len(ends) > 1:
        raise TransferError(
            f"ranks swapped version {version} in after different steps, or other weights: {sorted(ends)}"
        )


def longest(reports: list[dict[str, Any]], field: str) -> int:
    """The longest that a rank took over something."""
    return max(int(report[field]) for report in reports)
