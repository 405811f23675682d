"""Withholds a device's leases in random windows, and records these windows."""

from rose.clock import Anchor
from rose.config import CoservingConfig
from rose.events import Hold, Holdout, Record
from rose.runtime.policy.holdout import HoldoutRules, HoldoutWindow, window_at

REASON = "withheld"  # the reason of a hold in a window in which leases are withheld


def rules(coserving: CoservingConfig) -> HoldoutRules:
    return HoldoutRules(
        share=coserving.holdout_share,
        window_ns=int(coserving.holdout_window_s * 1e9),
        washout_ns=int(coserving.holdout_washout_s * 1e9),
        seed=coserving.holdout_seed,
    )


class Withholding:
    def __init__(
        self, device_id: str, engine_id: str, drawn_by: HoldoutRules, anchor: Anchor, record: Record, began_ns: int
    ) -> None:
        self._device_id, self._engine_id, self._rules = device_id, engine_id, drawn_by
        self._anchor, self._record, self._began_ns = anchor, record, began_ns
        self._window: HoldoutWindow | None = None
        self._looked_ns = began_ns
        #: since the last recorded hold: rollouts' first wish in vain, and its time
        self._wanted_since_ns, self._wanted_ns = 0, 0

    def look(self, now_ns: int, *, wanted: bool) -> bool:
        """Return whether leases are withheld now. A window is recorded before it takes effect."""
        if not self._rules.share:
            return False
        utc_ns = self._anchor.utc_ns(now_ns)
        if self._window is None or not self._window.t0_ns <= utc_ns < self._window.t1_ns:
            self._begin(window_at(self._rules, self._device_id, utc_ns), utc_ns // 1000)
        assert self._window is not None
        if self._window.withheld and wanted:
            self._wanted_since_ns = self._wanted_since_ns or self._looked_ns
            self._wanted_ns += now_ns - self._looked_ns
        self._looked_ns = now_ns
        return self._window.withheld

    def tell(self) -> None:
        if self._wanted_ns:
            self._record(
                Hold(
                    at_us=self._anchor.utc_us(self._wanted_since_ns),
                    device_id=self._device_id,
                    engine_id=self._engine_id,
                    reason=REASON,
                    count=1,
                    duration_ns=self._wanted_ns,
                ),
                durable=False,
            )
            self._wanted_since_ns, self._wanted_ns = 0, 0

    def _begin(self, window: HoldoutWindow, at_us: int) -> None:
        t0_ns = max(window.t0_ns, self._anchor.utc_ns(self._began_ns))
        self._window = window
        self._record(
            Holdout(
                at_us=at_us,
                device_id=self._device_id,
                t0_ns=t0_ns,
                t1_ns=window.t1_ns,
                withheld=window.withheld,
                draw=window.draw,
                holdout_share=self._rules.share,
                holdout_seed=self._rules.seed,
                window_ns=self._rules.window_ns,
                washout_ns=self._rules.washout_ns,
            )
        )
