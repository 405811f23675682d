"""`python -m benchmarks.coserve.picture RESULTS.json ... FRONTIER.svg`: serving's slowdown and the rollout tokens of
each policy. If several files have a load, the last one counts. It needs `pip install vl-convert-python`."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import altair
import polars as pl

_LOADS = {"steady": "2 requests alive", "heavy": "5 requests alive"}
_NAMES = {"idle": "rose, stretch 1", "rose": "rose, stretch 1.25", "rose_slack": "rose, stretch 100"}


def _points(detail: dict[str, Any]) -> pl.DataFrame:
    points = []
    for load, title in _LOADS.items():
        played = {(one["policy"], one["round"]): one for one in detail[load]["rounds"]}
        numbers = {number for _, number in played}
        for policy in {policy for policy, _ in played} - {"solo"}:
            tpot = [played[policy, n]["tpot_ms"]["p50"] / played["solo", n]["tpot_ms"]["p50"] for n in numbers]
            rates = [[played[name, n]["rollout"]["tokens_per_s"] for n in numbers] for name in (policy, "share_all")]
            share = statistics.median(got / most for got, most in zip(*rates, strict=True))
            name = _NAMES.get(policy, policy)
            points.append({"serving": title, "policy": name, "longer": statistics.median(tpot), "share": share})
    return pl.DataFrame(points)


def main() -> None:
    *results, picture = map(Path, sys.argv[1:])
    detail: dict[str, Any] = {}
    for file in results:
        detail |= json.loads(file.read_text())["detail"]
    base = altair.Chart(_points(detail)).encode(
        x=altair.X("longer", title="serving's time per token, median, against serving alone").scale(zero=False),
        y=altair.Y("share", title="rollout tokens, as a share of share_all").axis(format="%"),
    )
    low = altair.datum.policy == _NAMES["idle"]  # Its point may lie beside that of a stretch of 1.25.
    above, below = (
        base.transform_filter(which).mark_text(align="left", dx=7, dy=dy).encode(text="policy")
        for which, dy in ((~low, -5), (low, 12))
    )
    panels = (
        (base.mark_circle(size=60) + above + below)
        .properties(width=390, height=280)
        .facet(altair.Column("serving", title=None))
    )
    panels.properties(background="white").save(str(picture))


if __name__ == "__main__":
    main()
