"""Bytes of one step of made-up weights by each way, and GiB/s encoded and applied on one core and on all."""

import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.shared import output
from benchmarks.transfer import made_up
from benchmarks.transfer.compare import compare
from benchmarks.transfer.scope import ORDINARY_SHARES, SHARES, Scope
from benchmarks.transfer.ways import AUTO, SMALL, XOR
from rose.accept.report import Report

ENCODE_GIB_PER_S, APPLY_GIB_PER_S = 2, 4
Rates = dict[str, dict[str, dict[str, float]]]


def measure_sizes(report: Report, _: Path, scope: Scope) -> None:
    detail = {}
    for share in SHARES:
        compared = compare(*made_up.pair(scope.sizes_elements, share))
        sent = compared.sent_bytes
        ratio = sent[XOR.name] / sent[AUTO.name]
        report.claim(f"bytes of XOR + zstd-1 against ours, {share:.0%} changed", ratio, "x", 2, "higher")
        report.claim("  `small` against the entropy", sent[SMALL.name] / compared.bound_bytes, "x", 1.15, "lower")
        detail[f"{share:.0%}"] = compared.to_json()
    report.detail["sizes"] = {"shares": detail}


def measure_speed(report: Report, _: Path, scope: Scope) -> None:
    """Measure one core, of a process kept to it from its start, and all cores."""
    one = sorted(os.sched_getaffinity(0))[-1:]
    amount = scope.speed_elements, scope.speed_rounds
    on_one = json.loads(output("benchmarks.transfer.child", one, "speed", *amount))
    detail: dict[str, Rates] = {"one core": on_one, "all cores": rates(*amount)}
    for share in ORDINARY_SHARES:
        one_core = detail["one core"][f"{share:.0%}"]
        for what, target in (("encode", ENCODE_GIB_PER_S), ("apply", APPLY_GIB_PER_S)):
            ours, xor = (one_core[f"{way.name}: {what}"]["best"] for way in (AUTO, XOR))
            report.claim(f"{what}, {share:.0%} changed, one core", ours, "GiB/s", target, "higher")
            report.claim("  against XOR + zstd-1", ours / xor, "x", 1, "higher")
    report.detail["speed"] = {"unit": "GiB/s of checkpoint", "elements": scope.speed_elements, **detail}


def rates(elements: int, rounds: int) -> Rates:
    """Return the rates of each way at each share, over rounds in which the ways take turns."""
    return {f"{share:.0%}": _rates(elements, rounds, share) for share in SHARES}


def _rates(elements: int, rounds: int, share: float) -> dict[str, dict[str, float]]:
    base, new = made_up.pair(elements, share)
    held = base.copy()
    taken_s: dict[str, list[float]] = {}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        taken_s.setdefault(what, []).append(time.perf_counter() - began_s)

    for number in range(rounds + 1):
        if number == 1:  # The first round compiles, and touches memory.
            taken_s.clear()
        with timed("memcpy"):
            np.copyto(held, new)
        for way in (AUTO, XOR):
            with timed(f"{way.name}: encode"):
                sent = way.encode(base, new)
            np.copyto(held, base)
            with timed(f"{way.name}: apply"):
                way.apply(held, sent)
            assert np.array_equal(held, new), f"{way.name} is not lossless"
    gib = base.nbytes / 2**30
    return {
        what: {"best": round(gib / min(each), 3), "median": round(gib / statistics.median(each), 3)}
        for what, each in taken_s.items()
    }
