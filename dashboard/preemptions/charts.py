"""How fast rollouts gave way, why, and when.

Channels are objects: of a name alone Altair takes milliseconds to find out which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import altair as alt
import polars as pl

from dashboard import timeline
from dashboard.charts import PREEMPTION_COLOURS, budget, ink
from rose.text import visible

_PANEL_PX, _AXIS_PX, _ROW_PX = 120, 70, 30


def reactions(bins: pl.DataFrame, budgets: Mapping[str, float]) -> list[alt.LayerChart]:
    """A histogram for each action on one axis of time, with serving's budgets across.

    Columns: action, from_ms, to_ms, measured. `budgets` are milliseconds by what they are of.
    """
    ends = [*bins["from_ms"], *bins["to_ms"], *budgets.values()]
    # With room for the labels of the budgets at the right.
    scale = alt.Scale(type="log", domain=[min(ends), max(ends) * 10], nice=False)
    actions = [action for action in PREEMPTION_COLOURS if action in set(bins["action"])]
    return [
        alt.layer(
            _histogram(bins, action, scale, last=action == actions[-1]),
            *_lines(budgets, labelled=action == actions[0]),
            title=timeline.title(action),
        ).properties(height=_PANEL_PX + (_AXIS_PX if action == actions[-1] else 0))
        for action in actions
    ]


def _histogram(bins: pl.DataFrame, action: str, scale: alt.Scale, *, last: bool) -> alt.Chart:
    axis = alt.Axis(grid=False, format="~g", labels=last, ticks=last, labelOverlap=True)
    title = "milliseconds until the rollout was out of the way" if last else None
    tips = [alt.Tooltip(f"{end}_ms:Q", format=".3~g", title=f"{end} (ms)") for end in ("from", "to")]
    return (
        alt.Chart(bins.filter(action=action).select("from_ms", "to_ms", "measured"))
        .mark_bar(color=PREEMPTION_COLOURS[action], stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("from_ms:Q", scale=scale, axis=axis, title=title),
            x2=alt.X2("to_ms:Q"),
            y=alt.Y("measured:Q", title=None, axis=_count_axis()),
            y2=alt.datum(0),
            tooltip=[*tips, alt.Tooltip("measured:Q", format=",")],
        )
    )


def _count_axis() -> alt.Axis:
    return alt.Axis(tickCount=3, tickMinStep=1, format="~s", minExtent=40, maxExtent=40)


def _lines(budgets: Mapping[str, float], *, labelled: bool) -> list[alt.Chart]:
    layers = []
    longest = max(budgets.values(), default=0)
    for name, ms in budgets.items():
        base = alt.Chart(pl.DataFrame({"ms": [ms], "label": [f"{name} {ms:,.0f} ms"]})).encode(x=alt.X("ms:Q"))
        layers.append(
            base.mark_rule(color=budget(), strokeDash=[8, 4], strokeWidth=1.5).encode(tooltip=alt.Tooltip("label:N"))
        )
        if labelled:
            # The shorter budget is named at its left: the two may be close.
            side = {"align": "left", "dx": 4} if ms == longest else {"align": "right", "dx": -4}
            label = base.mark_text(color=ink(), baseline="top", **side)
            layers.append(label.encode(text=alt.Text("label:N"), y=alt.value(2)))
    return layers


def causes(frame: pl.DataFrame, field: str, title: str) -> alt.LayerChart:
    """Causes by one of their sums, the largest at the top, with its value. Columns: cause, action and `field`.

    One that is NULL has no bar, and the word unknown.
    """
    text = pl.when(pl.col(field).is_null()).then(pl.lit("unknown")).otherwise(pl.col(field).cast(pl.String))
    shown = frame.select("cause", "action", value=field, text=text)
    base = alt.Chart(shown, height=_ROW_PX * shown.height + 80).encode(
        y=alt.Y(
            "cause:N",
            title=None,
            sort=[*map(visible, shown["cause"])],
            axis=alt.Axis(labelLimit=260, labelOverlap=False),
        ),
    )
    # Yields are a thousand times as many as revocations.
    scale = alt.Scale(type="symlog", domainMin=0)
    x = alt.X(
        "value:Q", title=title, scale=scale, axis=alt.Axis(format="~s", tickCount=5, tickMinStep=1, labelOverlap=True)
    )
    colours = timeline.present(PREEMPTION_COLOURS, shown["action"])
    colour = alt.Color("action:N", legend=None, scale=alt.Scale(domain=list(colours), range=list(colours.values())))
    tips = [alt.Tooltip("action:N"), alt.Tooltip("cause:N"), alt.Tooltip("text:N", title=title)]
    label = base.mark_text(align="left", dx=5, color="#7A8794").encode(text=alt.Text("text:N"), x=alt.X("drawn:Q"))
    return base.mark_bar().encode(x=x, color=colour, tooltip=tips) + label.transform_calculate(
        drawn="datum.value === null ? 0 : datum.value"
    )


def over_time(frame: pl.DataFrame, begin: datetime, end: datetime, width: timedelta) -> list[alt.Chart]:
    """How many of each action there were, bin by bin. Columns: action, t, preemptions; a bin is `width` long."""
    shown = frame.select("action", "t", "preemptions", until=pl.col("t") + width)
    actions = [action for action in PREEMPTION_COLOURS if action in set(shown["action"])]
    return [
        alt.Chart(shown.filter(action=action), title=timeline.title(action))
        .mark_bar(color=PREEMPTION_COLOURS[action], clip=True)
        .encode(
            x=timeline.between("t", begin, end),
            x2=alt.X2("until:T"),
            y=alt.Y("preemptions:Q", title=None, axis=_count_axis()),
            y2=alt.datum(0),
            tooltip=[timeline.time_tip("t"), alt.Tooltip("preemptions:Q", format=",")],
        )
        .properties(height=_PANEL_PX)
        for action in actions
    ]
