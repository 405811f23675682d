"""Simulated power meters of a device whose leases may follow its load, second by second, with what lending drew."""

from typing import Any

import numpy as np

from benchmarks.coverage.shown import summed, wandering
from rose.config import CoservingConfig

USUAL = CoservingConfig()
STEP_S = 5  #: Seconds of a reading.
STEPS, WASHOUT = int(USUAL.holdout_window_s) // STEP_S, int(USUAL.holdout_washout_s) // STEP_S
BUSY = 0.5  #: Load at which a lease that follows load ends.
EXTRA_W = 180.0  #: Watts that lending draws on an idle device; less where serving works too.
#: Cases: whether leases follow load, and the chance of a burst in a window.
CASES: dict[str, tuple[bool, float]] = {
    "leases end at random": (False, 0.0),
    "leases follow load": (True, 0.0),
    "leases follow load, bursts": (True, 0.05),
}


def read(random: np.random.Generator, hours: float, case: str, device_class: str) -> tuple[list[dict[str, Any]], float]:
    """Return rows of `power_by_window`, and the watts that lending drew while leased. Power bends with load, also
    within a fifth of it, and its level wanders."""
    follows, burst = CASES[case]
    windows = int(hours * 3600 / USUAL.holdout_window_s)
    withheld = random.random(windows) < USUAL.holdout_share
    slow = np.repeat(wandering(random, windows, 0.9), STEPS) + 0.6 * random.standard_normal(windows * STEPS)
    slow += 3 * np.repeat(random.random(windows) < burst, STEPS)
    load = 1 / (1 + np.exp(0.4 - slow))
    wanted = np.repeat(random.random(windows * 4) < 0.7, STEPS // 4)
    leased = ~np.repeat(withheld, STEPS) & (load < BUSY if follows else wanted)
    extra = leased * EXTRA_W * (1 - load)
    level = np.repeat(15 * wandering(random, windows, 0.5), STEPS) + 8 * random.standard_normal(windows * STEPS)
    watts = 150 + 400 * load**0.7 + level + extra
    number, into = np.divmod(np.arange(windows * STEPS), STEPS)
    before = np.concatenate([[False], withheld[:-1]])
    clean = withheld[number] & (before[number] | (into >= WASHOUT))
    rows = []
    for name, side in ((None, np.ones_like(clean)), (False, ~clean), (True, clean)):
        y = np.bincount(number[side], weights=watts[side] * 1000 * STEP_S, minlength=windows)
        x = np.bincount(number[side], minlength=windows) * float(STEP_S)
        rows.append(
            {"device_class": device_class, "device_id": "d", "withheld": name}
            | summed(x[x > 0], y[x > 0])
            | {"energy_mw_ns": round(y.sum()) * 10**9, "duration_ns": round(x.sum()) * 10**9}
            | {"leased_ns": int((leased & side).sum()) * STEP_S * 10**9}
            | {"leased_mw_ns": round((watts * 1000)[leased & side].sum()) * STEP_S * 10**9}
        )
    return rows, float(extra.sum() / leased.sum())
