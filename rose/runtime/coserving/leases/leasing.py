"""Carries out the decisions of the lease machine: on the page, at the gateway and in the ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rose.clock import Anchor, monotonic_ns
from rose.config import CoservingConfig
from rose.events import Lease, Preemption, Record
from rose.ledger.files.layout import LedgerError
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.policy.lease import Change, EngineCut, LeaseFacts, LeaseState, next_change, noted, released, share_at
from rose.runtime.policy.policies import NAMES
from rose.runtime.policy.slack import LeaseTerms

LeaseAction = Literal[
    "granted", "renewed", "throttled", "restored", "resized", "frozen", "released", "preempted", "expired"
]
_RECORDED_AS: dict[str, LeaseAction] = {
    "throttle": "throttled",
    "restore": "restored",
    "shrink": "resized",
    "cut": "resized",
}
_CHANGES_MAX = 8  # more changes at one look would be a fault of the machine


def lease_id_of(run_id: str, device_id: str, number: int) -> str:
    return f"{run_id}-{device_id}-{number}"


@dataclass(frozen=True, slots=True)
class LeaseChange:
    at_ns: int
    lease_id: str | None
    step: int | None


@dataclass(frozen=True, slots=True)
class LastLease:
    number: int = 0
    granted: Lease | None = None  # None: the ledger has its end.
    expires_at_us: int = 0

    def end(self, anchor: Anchor | None = None) -> Lease | None:
        """Return an event that ends the lease now, or when it expired. Return None if the ledger has the end."""
        if self.granted is None:
            return None
        now_us = max((anchor or Anchor.take()).now_us(), self.granted.at_us)
        return replace(
            self.granted,
            at_us=min(now_us, self.expires_at_us),
            event_id=f"{self.granted.lease_id}/end",
            action="expired",
            reason="its agent ended while it was in force",
        )


class Leasing:
    """Grants and ends the leases of one device. Times are monotonic ns. Not thread-safe.

    `take_back` takes all turns off the engine and returns their number. `last` is a former agent's last lease. If it
    has no end in the ledger, the constructor ends it. `ended_before` has former agents' leases that ended after the
    device's last recorded slice."""

    def __init__(
        self,
        *,
        device_id: str,
        engine_id: str,
        page: ArbiterPage,
        anchor: Anchor,
        kv_bytes_per_token: Callable[[], int],
        id_prefix: str,
        coserving: CoservingConfig,
        record: Record,
        take_back: Callable[[str], int],
        ledger_failure: Callable[[], str | None] = lambda: None,
        run: Callable[[], str] = lambda: "",
        ended_before: Sequence[LeaseChange] | None = None,
        last: LastLease = LastLease(),
    ) -> None:
        self._device_id, self._engine_id, self._page, self._anchor = device_id, engine_id, page, anchor
        self._kv_bytes_per_token, self._id_prefix = kv_bytes_per_token, id_prefix
        self.coserving, self._record, self._take_back = coserving, record, take_back
        self._ledger_failure, self._run = ledger_failure, run
        self.failure: str | None = None  #: Why the last change could not be recorded. Until it is, nothing is lent.
        #: Grants and ends of leases, oldest first. The accountant removes old entries.
        self.history: list[LeaseChange] = list(ended_before or ())
        cut = page.cut()
        self._cut_told_ns = 0 if cut is None else cut.at_ns  # when the last recorded cut was
        page.set_lease(LeaseTerms())
        self.state = LeaseState(number=last.number)
        self._end_left(last, accounted=ended_before is not None)

    @property
    def lease_id(self) -> str | None:
        return self._lease_id(self.state.number) if self.state.in_force else None

    def engine_cut(self) -> EngineCut:
        if (cut := self._page.cut()) is None:
            return EngineCut()
        return EngineCut(cut.count, cut.lease_number, cut.tokens_after * self._kv_bytes_per_token())

    def act(self, facts: Callable[[LeaseState], LeaseFacts]) -> None:
        for _ in range(_CHANGES_MAX):
            known = facts(self.state)
            now_ns = monotonic_ns()
            self.state = noted(self.state, known.load, now_ns)
            change = next_change(replace(known, state=self.state), now_ns)
            if change is None or not self._carry_out(change):
                break
        self._tell_cut()

    def end(self, reason: str) -> None:
        if self.state.in_force:
            self._carry_out(released(self.state, reason))
        self._tell_cut()

    def _carry_out(self, change: Change) -> bool:
        if change.action == "grant":
            return self._grant(change.state)
        before, self.state = self.state, change.state
        if before.in_force and not change.state.in_force:
            self._end(change)
        elif change.state.in_force:
            self._publish()
            self._say(change)
        return True

    def _grant(self, state: LeaseState) -> bool:
        # Checked first: otherwise an unavailable ledger would get a lease at each heartbeat.
        if (failure := self._ledger_failure()) is not None:
            self.failure = failure
            return False
        event = replace(self._event(state, "granted", None), event_id=f"{self._lease_id(state.number)}/granted")
        if not self._tell(event):  # The ledger comes first, so it has every lease that is in force.
            # The grant waits in the writer's queue. The lease's end must follow it there.
            self.state = replace(state, ended="released")
            self._tell(self._closing(self.state, "never in force: the ledger could not be written"), durable=False)
            return False
        self.state = state
        # A lease may be granted at the same look that ended another.
        at_ns = max(monotonic_ns(), self.history[-1].at_ns) if self.history else monotonic_ns()
        self.history.append(LeaseChange(at_ns, self.lease_id, state.step))
        self._publish()
        return True

    def _end(self, change: Change) -> None:
        self._page.set_lease(LeaseTerms())
        self.history.append(LeaseChange(monotonic_ns(), None, None))
        reason = change.reason or ""
        if change.action == "preempt":
            self._tell(self._preemption("revoke", reason, requests=self._take_back(reason)))
        self._tell(self._closing(change.state, reason))

    def _say(self, change: Change) -> None:
        if change.action == "renew":
            # Twice a second, and any later event says as much: a renewal need not wait for the disk.
            if not self._tell(self._event(self.state, "renewed", None), durable=False):
                self.end("the ledger cannot be written")
        elif (action := _RECORDED_AS.get(change.action)) is not None:
            self._tell(self._event(self.state, action, change.reason))
            if change.action == "cut":
                self._tell(self._event(self.state, "frozen", "until the next term"))

    def _publish(self) -> None:
        self._page.set_lease(
            LeaseTerms(
                number=self.state.number,
                expires_ns=self.state.expires_ns,
                compute_share=self.state.compute_share,
                kv_budget_tokens=self.state.kv_budget_bytes // self._kv_bytes_per_token(),
                regret_share=self.state.regret_share,
                frozen=self.state.frozen,
                policy=NAMES.index(self.coserving.policy),
                stretch=self.coserving.stretch,
                slack_share=share_at(self.coserving.slack_share, self.state.level),
            )
        )

    def _tell_cut(self) -> None:
        cut = self._page.cut()
        if cut is None or cut.at_ns == self._cut_told_ns:
            return
        self._cut_told_ns = cut.at_ns
        self._tell(
            replace(
                self._preemption("cut", "serving grew into its headroom", requests=cut.requests),
                at_us=self._anchor.utc_us(cut.at_ns),
                lease_id=self._lease_id(cut.lease_number),
                tokens_kept=cut.tokens_kept,
                duration_ns=cut.took_ns,
                returned_bytes=cut.bytes_returned,
                kv_budget_bytes_before=cut.tokens_before * self._kv_bytes_per_token(),
                kv_budget_bytes_after=cut.tokens_after * self._kv_bytes_per_token(),
            )
        )

    def _end_left(self, last: LastLease, *, accounted: bool) -> None:
        end = last.end(self._anchor)
        if end is None or last.granted is None:
            return
        self._tell(end)
        if accounted and end.lease_id not in {change.lease_id for change in self.history}:
            offset_ns = self._anchor.utc_minus_monotonic_ns
            began_ns, ended_ns = last.granted.at_us * 1000 - offset_ns, end.at_us * 1000 - offset_ns
            self.history.append(LeaseChange(began_ns, end.lease_id, last.granted.step))
            self.history.append(LeaseChange(min(ended_ns, monotonic_ns()), None, None))

    def _lease_id(self, number: int) -> str:
        return lease_id_of(self._id_prefix, self._device_id, number)

    def _event(self, state: LeaseState, action: LeaseAction, reason: str | None) -> Lease:
        return Lease(
            at_us=self._anchor.now_us(),
            device_id=self._device_id,
            engine_id=self._engine_id,
            lease_id=self._lease_id(state.number),
            action=action,
            kv_budget_bytes=state.kv_budget_bytes,
            compute_share=state.compute_share,
            regret_share=state.regret_share,
            expires_at_us=self._anchor.utc_us(state.expires_ns),
            step=state.step,
            reason=reason,
            rl_run_id=self._run() or None,
        )

    def _closing(self, state: LeaseState, reason: str) -> Lease:
        assert state.ended is not None, f"lease {state.number} is in force"
        return replace(self._event(state, state.ended, reason), event_id=f"{self._lease_id(state.number)}/end")

    def _preemption(self, action: Literal["cut", "revoke"], reason: str, *, requests: int) -> Preemption:
        return Preemption(
            at_us=self._anchor.now_us(),
            device_id=self._device_id,
            engine_id=self._engine_id,
            lease_id=self._lease_id(self.state.number),
            action=action,
            reason=reason,
            step=self.state.step,
            requests=requests,
            tokens_lost=0,
            kv_budget_bytes_before=self.state.kv_budget_bytes,
            kv_budget_bytes_after=0,
            rl_run_id=self._run() or None,
        )

    def _tell(self, event: Lease | Preemption, durable: bool | None = None) -> bool:
        """Record an event. Return False if it must wait in the writer's queue."""
        try:
            self._record(event, durable=durable)
        except LedgerError as error:
            self.failure = str(error)
            return False
        self.failure = None
        return True
