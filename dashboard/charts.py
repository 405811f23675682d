"""The charts. Colours are safe for colour-blind readers (Okabe and Ito's, Tol's indigo), one a bucket everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from rose.events import BUCKETS

#: Bucket to colour, in the order in which buckets are stacked.
BUCKET_COLOURS: Mapping[str, str] = {
    "serving": "#0072B2",
    "rollout": "#E69F00",
    "train": "#009E73",
    "sync": "#CC79A7",
    "activation": "#56B4E9",
    "headroom": "#F0E442",
    "idle": "#D5D9DD",
    "unaccounted": "#D55E00",
    "transfer": "#332288",
    "energy": "#000000",
}
BORROWED, DEDICATED, BUDGET = "#E69F00", "#009E73", "#B22222"
LENT_COLOURS: Mapping[str, str] = {"device lent": "#E69F00", "device not lent": "#0072B2"}
CLOSING_COLOURS: Mapping[str, str] = {
    "released": "#009E73", "preempted": "#D55E00", "expired": "#CC79A7", "open": "#56B4E9",
}  # fmt: skip
PREEMPTION_COLOURS: Mapping[str, str] = {"yield": "#56B4E9", "cut": "#E69F00", "revoke": "#D55E00"}
_INK = "#1f2933"
#: For what is no bucket of ours.
_OTHER = "#9fb3c8"
_ROW_PX = 40
_CLOCK = "%H:%M:%S"
_PERCENTILES = alt.Scale(domain=["p99", "p50"], range=[[1, 0], [5, 4]])


def _colour(field: str, colours: Mapping[str, str], title: str | None = None) -> alt.Color:
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(title=title, orient="top", symbolType="square"))


def _time(field: str) -> alt.X:
    """Times come without a zone, which Vega reads and shows as they are, so UTC stays UTC in any browser."""
    return alt.X(f"{field}:T", title="time (UTC)", axis=alt.Axis(labelOverlap=True, grid=False, format=_CLOCK))


def _step() -> alt.X:
    return alt.X("step:Q", title="RL step", axis=alt.Axis(tickMinStep=1, format="d", grid=False))


def stacked_money(frame: pl.DataFrame, currency: str) -> alt.Chart:
    """One bar for each view, divided by bucket. Columns: view, bucket, usd, text."""
    order = {bucket: index for index, bucket in enumerate(BUCKET_COLOURS)}
    frame = frame.with_columns(order=pl.col("bucket").replace_strict(order))
    return (
        alt.Chart(frame, height=240)
        .mark_bar()
        .encode(
            y=alt.Y("view:N", title=None, sort=None),
            x=alt.X("usd:Q", title=f"cost of the period ({currency})"),
            color=_colour("bucket", {b: BUCKET_COLOURS[b] for b in order if b in set(frame["bucket"])}),
            order="order:Q",
            tooltip=["view:N", "bucket:N", alt.Tooltip("text:N", title="cost")],
        )
    )


def money_by_day(frame: pl.DataFrame, currency: str) -> alt.Chart:
    """One bar for each day or month, divided by bucket. Columns: day, bucket, usd, text."""
    order = pl.col("bucket").replace_strict({b: n for n, b in enumerate(BUCKET_COLOURS)}, default=len(BUCKET_COLOURS))
    present = set(frame["bucket"])
    colours = {bucket: colour for bucket, colour in BUCKET_COLOURS.items() if bucket in present}
    colours |= dict.fromkeys(sorted(present - set(BUCKET_COLOURS)), _OTHER)
    return (
        alt.Chart(frame.with_columns(order=order), height=280)
        .mark_bar(size=max(4, min(60, 900 // frame["day"].n_unique())))
        .encode(
            x=alt.X("day:O", title="UTC", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("usd:Q", title=f"cost ({currency})"),
            color=_colour("bucket", colours),
            order="order:Q",
            tooltip=["day:O", "bucket:N", alt.Tooltip("text:N", title="cost")],
        )
    )


def budgets(frame: pl.DataFrame, currency: str) -> alt.LayerChart:
    """Spent as a bar, the forecast as a point with its 95% interval, the budget as a tick.

    Columns: team, spent, budget, forecast, low, high, text.
    """
    base = alt.Chart(frame, height=_ROW_PX * max(frame.height, 2) + 60)
    y = alt.Y("team:N", title=None, sort=None)
    title = f"{currency} in the month: bar spent, point forecast with its 95% interval, tick budget"
    domain = _from_zero([*frame["spent"], *frame["budget"], *frame["high"]])
    x = alt.X("spent:Q", title=title, scale=alt.Scale(domain=domain))
    tooltip = ["team:N", alt.Tooltip("text:N", title="spent, forecast, budget")]
    return (
        base.mark_bar(size=14, color="#56B4E9").encode(y=y, x=x, tooltip=tooltip)
        + base.mark_rule(strokeWidth=2, color=_INK).encode(y=y, x=alt.X("low:Q", title=title), x2="high:Q")
        + base.mark_point(filled=True, size=80, color=_INK, opacity=1).encode(y=y, x="forecast:Q", tooltip=tooltip)
        + base.mark_tick(color=BUDGET, thickness=3, size=30).encode(y=y, x="budget:Q", tooltip=tooltip)
    )


def bars(frame: pl.DataFrame, title: str) -> alt.LayerChart:
    """Labelled bars. Columns: name, usd, text, made (`borrowed` or `dedicated`)."""
    base = alt.Chart(frame, height=_ROW_PX * max(frame.height, 2) + 100).encode(
        y=alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=260)),
        x=alt.X("usd:Q", title=title, scale=alt.Scale(domain=_from_zero(frame["usd"].to_list()))),
    )
    colour = _colour("made", {"borrowed": BORROWED, "dedicated": DEDICATED}, None)
    return base.mark_bar().encode(color=colour, tooltip=["name:N", alt.Tooltip("text:N", title="cost")]) + (
        base.mark_text(align="left", dx=6, color=_INK).encode(text="text:N")
    )


def intervals(frame: pl.DataFrame, title: str) -> alt.LayerChart:
    """Points with their 95% intervals. Columns: name, usd, low, high, text."""
    base = alt.Chart(frame, height=_ROW_PX * max(frame.height, 2) + 100)
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=260))
    domain = _from_zero([*frame["usd"], *frame["high"]])
    x = alt.X("usd:Q", title=title, scale=alt.Scale(domain=domain))
    tooltip = ["name:N", alt.Tooltip("text:N", title="cost"), alt.Tooltip("range:N", title="95% interval")]
    return (
        base.mark_rule(strokeWidth=3, color="#9fb3c8").encode(y=y, x=alt.X("low:Q", title=title), x2="high:Q")
        + base.mark_point(filled=True, size=110, color="#0072B2", opacity=1).encode(y=y, x=x, tooltip=tooltip)
        + base.mark_text(align="left", dx=4, dy=-12, color=_INK).encode(y=y, x=x, text="text:N")
    )


def _from_zero(values: Sequence[float | None]) -> list[float]:
    """An axis from 0 (or below, for what is below) with room for a label at its right."""
    known = [value for value in values if value is not None]
    return [min(0.0, *known), max(0.0, *known) * 1.2 or 1.0] if known else [0.0, 1.0]


def device_time(lane: pl.DataFrame, *, legend: bool) -> alt.Chart:
    """How one lane's time was divided, over time. Columns: t0, t1, bucket, ns, share; a row for each bin and bucket."""
    order = pl.col("bucket").replace_strict({bucket: index for index, bucket in enumerate(BUCKET_COLOURS)})
    stacked = (
        lane.sort("t0", order)
        .with_columns(top=pl.col("share").cum_sum().over("t0"), seconds=pl.col("ns") / 1e9)
        .with_columns(bottom=pl.col("top") - pl.col("share"))
        .filter(pl.col("ns") > 0)
    )
    colour = _colour("bucket", {b: BUCKET_COLOURS[b] for b in BUCKET_COLOURS if b in BUCKETS})
    return (
        alt.Chart(stacked, height=230 if legend else 185)
        .mark_rect(strokeWidth=0)
        .encode(
            x=_time("t0"),
            x2="t1:T",
            y=alt.Y("bottom:Q", title="share of time", scale=alt.Scale(domain=[0, 1]),
                    axis=alt.Axis(format="%", tickCount=3)),
            y2="top:Q",
            color=colour if legend else colour.legend(None),
            tooltip=[alt.Tooltip("t0:T", title="time (UTC)", format=_CLOCK), "bucket:N",
                     alt.Tooltip("seconds:Q", format=".3f"), alt.Tooltip("share:Q", format=".1%")],
        )
    )  # fmt: skip


def latency(frame: pl.DataFrame, budget_ms: float | None, title: str) -> alt.LayerChart:
    """p50 (dashed) and p99 of one latency over time, lent and not, with its budget. Columns: t, device, which, ms."""
    top = max([value for value in frame["ms"] if value is not None], default=1.0)
    in_view = budget_ms is not None and budget_ms <= 10 * top
    ceiling = 1.1 * max(top, budget_ms if budget_ms is not None and in_view else 0.0)
    base = alt.Chart(frame, height=340)
    lines = base.mark_line(point=alt.OverlayMarkDef(size=22), strokeWidth=1.8, clip=True).encode(
        x=_time("t"),
        y=alt.Y("ms:Q", title=title, scale=alt.Scale(domain=[0, ceiling])),
        color=_colour("device", LENT_COLOURS),
        strokeDash=alt.StrokeDash("which:N", scale=_PERCENTILES, legend=None),
        tooltip=[alt.Tooltip("t:T", title="time (UTC)", format=_CLOCK), "device:N", "which:N",
                 alt.Tooltip("ms:Q", title="ms", format=",.1f"), "requests:Q"],
    )  # fmt: skip
    if not in_view:
        return alt.layer(lines)
    limit = alt.Chart(pl.DataFrame({"ms": [budget_ms], "label": [f"SLO budget {budget_ms:,.0f} ms"]}))
    return alt.layer(
        lines,
        limit.mark_rule(color=BUDGET, strokeDash=[8, 4], strokeWidth=1.5).encode(y="ms:Q"),
        limit.mark_text(color=BUDGET, align="left", dy=-7, x=6).encode(y="ms:Q", text="label:N"),
    )


def leases(leases: pl.DataFrame, preemptions: pl.DataFrame, syncs: pl.DataFrame) -> alt.LayerChart:
    """Leases as bars, preemptions as marks above them and weight syncs below, one row for each device."""
    names = sorted({*leases["device_id"], *preemptions["device_id"], *syncs["device_id"]} - {None})
    y = alt.Y("device_id:N", title="device", scale=alt.Scale(domain=names), axis=alt.Axis(labelLimit=160))
    layers = []
    if not leases.is_empty():
        tips = ["lease_id:N", "closed_by:N", "close_reason:N", alt.Tooltip("seconds:Q", format=",.1f"), "step:Q"]
        bar = alt.Chart(leases).mark_bar(height=14, stroke="white", strokeWidth=0.5)
        layers.append(
            bar.encode(x=_time("granted_at"), x2="until:T", y=y, tooltip=tips,
                       color=_colour("closed_by", CLOSING_COLOURS, "lease closed by"))
        )  # fmt: skip
    if not preemptions.is_empty():
        tips = ["action:N", "preemptions:Q", alt.Tooltip("waited_ms:Q", format=",.1f"), "tokens_lost:Q"]
        tick = alt.Chart(preemptions).mark_tick(thickness=2, height=12, yOffset=-18, opacity=0.9)
        layers.append(tick.encode(x=_time("t"), y=y, color=alt.Color(
            "action:N", title="preemption (above the bar)",
            scale=alt.Scale(domain=list(PREEMPTION_COLOURS), range=list(PREEMPTION_COLOURS.values())),
            legend=alt.Legend(orient="top", symbolType="square"),
        ), tooltip=tips))  # fmt: skip
    if not syncs.is_empty():
        tips = ["policy_version:Q", "encoding:N", alt.Tooltip("wire_mb:Q", format=",.2f"), "ok:N"]
        point = alt.Chart(syncs).mark_point(filled=True, size=42, yOffset=17, opacity=0.9)
        layers.append(point.encode(x=_time("done"), y=y, shape=alt.Shape(
            "sync:N", title="weight sync (below the bar)",
            scale=alt.Scale(domain=["succeeded", "failed"], range=["triangle-up", "cross"]),
            legend=alt.Legend(orient="top"),
        ), color=alt.value("#6B4C9A"), tooltip=tips))  # fmt: skip
    return alt.layer(*layers).properties(height=150 + 75 * len(names)).resolve_scale(color="independent")


def by_step(frame: pl.DataFrame, field: str, title: str, colour: str, axis_format: str = "~s") -> alt.LayerChart:
    """One value by RL step. Columns: step and `field`."""
    base = alt.Chart(frame.filter(pl.col(field).is_not_null()), height=210).encode(
        x=_step(),
        y=alt.Y(f"{field}:Q", title=title, axis=alt.Axis(format=axis_format)),
        tooltip=["step:Q", alt.Tooltip(f"{field}:Q", title=title, format=axis_format)],
    )
    return base.mark_line(color=colour, strokeWidth=2) + base.mark_point(color=colour, filled=True, size=40, opacity=1)
