"""Which version each engine holds, what a sync spends its time on, and how much it moves.

Channels are objects: of a name alone Altair takes milliseconds to find out which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import altair as alt
import polars as pl

from dashboard import timeline
from dashboard.charts import ink
from rose.text import visible

#: Phases of a sync in their order, with what they are.
PHASES: Mapping[str, tuple[str, str]] = {
    "encode": ("#999933", "the publisher encodes it, once for all engines, before the sync begins"),
    "fetch": ("#56B4E9", "its bytes come"),
    "verify": ("#0072B2", "they are checked against their hashes"),
    "stage": ("#009E73", "they are decoded beside the running engine"),
    "pause": ("#D55E00", "the engine stands still while they are copied in"),
    "acknowledge": ("#CC79A7", "what the engine holds is hashed, and the origin told"),
    "other": ("#D5D9DD", "the rest of the sync"),
}
#: So many engines are drawn one by one.
ENGINES_MAX = 12
PUBLISHED = "published"
_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#999933",
    "#882255",
    "#44AA99",
    "#117733",
    "#AA4499",
    "#332288",
)


def held(frame: pl.DataFrame, begin: datetime, end: datetime) -> alt.Chart:
    """The version that each engine holds over time, and the newest that was published, dashed.

    Columns: line (NULL: published), t, policy_version.
    """
    named = frame.with_columns(pl.col("line").fill_null(PUBLISHED)).sort("line", "t")
    until = named.group_by("line").agg(pl.col("policy_version").last()).with_columns(t=pl.lit(end, named.schema["t"]))
    shown = pl.concat([named, until.select(named.columns)])
    engines = sorted(set(named["line"]) - {PUBLISHED})
    lines = [PUBLISHED, *engines] if PUBLISHED in set(named["line"]) else engines
    colours = [ink(), *_COLOURS] if PUBLISHED in lines else list(_COLOURS)
    return (
        alt.Chart(shown, height=260)
        .mark_line(interpolate="step-after", strokeWidth=2, clip=True)
        .encode(
            x=timeline.between("t", begin, end),
            y=alt.Y("policy_version:Q", title="version", scale=alt.Scale(zero=False), axis=alt.Axis(tickMinStep=1)),
            color=alt.Color(
                "line:N",
                scale=alt.Scale(domain=[*map(visible, lines)], range=colours[: len(lines)]),
                legend=alt.Legend(title=None, orient="top", columns=4, labelLimit=220),
            ),
            strokeDash=alt.condition(f"datum.line === '{PUBLISHED}'", alt.value([6, 4]), alt.value([1, 0])),
            tooltip=[alt.Tooltip("line:N"), timeline.time_tip("t"), alt.Tooltip("policy_version:Q")],
        )
    )


def phases(versions: pl.DataFrame) -> alt.Chart:
    """Mean time of each phase by version, stacked in their order. Columns: version, the phases and total in `_ms`."""
    timed = [f"{phase}_ms" for phase in PHASES if phase not in ("encode", "other")]
    rest = pl.max_horizontal(pl.col("total_ms") - pl.sum_horizontal(timed), pl.lit(0.0))
    long = (
        versions.with_columns(other_ms=pl.when(pl.col("total_ms").is_not_null()).then(rest))
        .unpivot([f"{phase}_ms" for phase in PHASES], index="version", variable_name="phase", value_name="ms")
        .with_columns(pl.col("phase").str.strip_suffix("_ms"))
        .filter(pl.col("ms").is_not_null())
        .with_columns(
            order=pl.col("phase").replace_strict({phase: n for n, phase in enumerate(PHASES)}),
            what=pl.col("phase").replace_strict({phase: what for phase, (_, what) in PHASES.items()}),
        )
    )
    colours = timeline.present({phase: colour for phase, (colour, _) in PHASES.items()}, long["phase"])
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return (
        alt.Chart(long, height=320)
        .mark_bar()
        .encode(
            x=_version(versions),
            y=alt.Y("sum(ms):Q", title="milliseconds, mean"),
            color=alt.Color("phase:N", scale=scale, legend=alt.Legend(title=None, orient="top", columns=4)),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("version:N"),
                alt.Tooltip("phase:N"),
                alt.Tooltip("ms:Q", format=",.3~f"),
                alt.Tooltip("what:N"),
            ],
        )
    )


def moved(versions: pl.DataFrame) -> alt.Chart:
    """Bytes sent for each version to all engines. Columns: version, wire_bytes, dense_bytes, text."""
    return (
        alt.Chart(versions.select("version", mb=pl.col("wire_bytes") / 1e6, text="text"), height=320)
        .mark_bar(color="#CC79A7")
        .encode(
            x=_version(versions),
            y=alt.Y("mb:Q", title="MB sent to all engines", axis=alt.Axis(format=",.3~r")),
            tooltip=[
                alt.Tooltip("version:N"),
                alt.Tooltip("mb:Q", format=",.3~f"),
                alt.Tooltip("text:N", title="of them whole"),
            ],
        )
    )


def _version(versions: pl.DataFrame) -> alt.X:
    axis = alt.Axis(labelAngle=0, labelOverlap=True)
    return alt.X("version:O", title="version", sort=versions["version"].to_list(), axis=axis)
