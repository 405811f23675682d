"""Bytes of one step of made-up weights, each way: the codec's, XOR, COO, a bitmask, and whole checkpoints."""

from __future__ import annotations

from pathlib import Path

from benchmarks.transfer import made_up
from benchmarks.transfer.compare import compare
from benchmarks.transfer.scope import SHARES, Scope
from benchmarks.transfer.ways import AUTO, SMALL, XOR
from rose.accept.report import Report


def measure(report: Report, _: Path, scope: Scope) -> None:
    """At each share of changed elements."""
    detail = {}
    for share in SHARES:
        compared = compare(*made_up.pair(scope.sizes_elements, share))
        sent = compared.sent_bytes
        report.claim(
            f"bytes of XOR + zstd-1 against ours, {share:.0%} changed",
            sent[XOR.name] / sent[AUTO.name],
            "x",
            2,
            "higher",
        )
        report.claim("  `small` against the entropy", sent[SMALL.name] / compared.bound_bytes, "x", 1.15, "lower")
        detail[f"{share:.0%}"] = compared.to_json()
    report.detail["sizes"] = {"provenance": "simulated", "shares": detail}
