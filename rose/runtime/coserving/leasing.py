"""The life of a device's leases: granted, renewed, cut, frozen, ended; every change on the page and in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rose.clock import Anchor, monotonic_ns
from rose.events import Lease, Preemption, Record
from rose.ledger.layout import LedgerError
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.policy.kv import cut_budget_bytes
from rose.runtime.policy.slack import LeaseTerms

LeaseAction = Literal["granted", "renewed", "resized", "frozen", "released", "preempted", "expired"]


def lease_id_of(run_id: str, device_id: str, number: int) -> str:
    """The name of a device's lease; `number` is what the arbiter page carries."""
    return f"{run_id}-{device_id}-{number}"


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """From `at_ns` on this lease was in force (None: no lease)."""

    at_ns: int
    lease_id: str | None
    step: int | None


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The lease in force. `expires_ns` is monotonic."""

    number: int
    lease_id: str
    step: int
    expires_ns: int
    kv_budget_bytes: int
    compute_share: float
    frozen: bool = False


class Leasing:
    """At most one lease at a time on one device. Times are monotonic nanoseconds, given by the caller."""

    def __init__(
        self,
        *,
        device_id: str,
        engine_id: str,
        page: ArbiterPage,
        anchor: Anchor,
        ttl_ns: int,
        kv_bytes_per_token: int,
        id_prefix: str,
        record: Record,
        ledger_failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._device_id, self._engine_id, self._page, self._anchor = device_id, engine_id, page, anchor
        self._ttl_ns, self._kv_bytes_per_token = ttl_ns, kv_bytes_per_token
        self._id_prefix, self._record = id_prefix, record
        self._ledger_failure = ledger_failure
        self._number = 0
        self.state: LeaseState | None = None
        #: Why the ledger could not be told of the last change; what cannot be recorded is not lent.
        self.failure: str | None = None
        #: Every grant and end not yet accounted for, oldest first; the accountant forgets what it has used.
        self.history: list[LeaseChange] = []

    def grant(
        self, *, step: int, kv_budget_bytes: int, compute_share: float, now_ns: int, frozen: bool = False
    ) -> LeaseState | None:
        """Lend the device; None, and nothing is lent, if the ledger cannot be written."""
        assert self.state is None, f"lease {self.state.lease_id if self.state else ''} is still in force"
        # Known beforehand, so that a ledger that is away for hours is not told of a lease at each heartbeat.
        if (failure := self._ledger_failure()) is not None:
            self.failure = failure
            return None
        self._number += 1
        self.state = LeaseState(
            number=self._number,
            lease_id=lease_id_of(self._id_prefix, self._device_id, self._number),
            step=step,
            expires_ns=now_ns + self._ttl_ns,
            kv_budget_bytes=kv_budget_bytes,
            compute_share=compute_share,
            frozen=frozen,
        )
        # In the ledger first: a lease that was in force is never missing there.
        if not self._log("granted", None):
            # The grant waits in the writer's queue, so its end must follow it there.
            self._log("released", "never in force: the ledger could not be written", durable=False)
            self.state = None
            return None
        # A lease that expired at this heartbeat ended a moment after `now_ns`.
        at_ns = max(now_ns, self.history[-1].at_ns) if self.history else now_ns
        self.history.append(LeaseChange(at_ns, self.state.lease_id, step))
        self._publish()
        return self.state

    def renew(self, now_ns: int) -> None:
        """Move the expiry on, or end the lease if the ledger cannot be written."""
        assert self.state is not None
        self.state = replace(self.state, expires_ns=now_ns + self._ttl_ns)
        self._publish()
        # Twice a second, and any later event of the lease says as much: a renewal need not wait for the disk.
        if not self._log("renewed", None, durable=False):
            self.end("released", "the ledger cannot be written")

    def cut(self, reason: str) -> int | None:
        """Halve the budget once and freeze it. Returns the new budget in bytes, or None if it was frozen already."""
        assert self.state is not None
        before = self.state.kv_budget_bytes
        after = cut_budget_bytes(before, frozen=self.state.frozen)
        if after == before:
            return None
        self.state = replace(self.state, kv_budget_bytes=after, frozen=True)
        self._publish()
        self._log("resized", reason)
        self._log("frozen", "until the next RL step")
        return after

    def record_preemption(
        self, action: Literal["cut", "revoke"], reason: str, *, before: int, after: int, requests: int
    ) -> None:
        assert self.state is not None
        self._tell(
            Preemption(
                device_id=self._device_id,
                engine_id=self._engine_id,
                lease_id=self.state.lease_id,
                action=action,
                reason=reason,
                step=self.state.step,
                requests=requests,
                # A turn keeps the tokens it has and goes on elsewhere.
                tokens_lost=0,
                kv_budget_bytes_before=before,
                kv_budget_bytes_after=after,
            )
        )

    def end(self, how: Literal["released", "preempted", "expired"], reason: str | None) -> None:
        """Withdraw the lease from the page, then say so in the ledger, now or as soon as it can be written."""
        assert self.state is not None
        self._page.set_lease(self.state.number, LeaseTerms(0, 0.0, 0))
        self.history.append(LeaseChange(monotonic_ns(), None, None))
        self._log(how, reason)
        self.state = None

    def _publish(self) -> None:
        assert self.state is not None
        self._page.set_lease(
            self.state.number,
            LeaseTerms(
                expires_ns=self.state.expires_ns,
                compute_share=self.state.compute_share,
                kv_budget_tokens=self.state.kv_budget_bytes // self._kv_bytes_per_token,
            ),
        )

    def _tell(self, event: Lease | Preemption, durable: bool | None = None) -> bool:
        """Record an event; False if it now waits in the writer's queue for the ledger to recover."""
        try:
            self._record(event, durable=durable)
        except LedgerError as error:
            self.failure = str(error)
            return False
        self.failure = None
        return True

    def _log(self, action: LeaseAction, reason: str | None, *, durable: bool | None = None) -> bool:
        assert self.state is not None
        return self._tell(
            Lease(
                device_id=self._device_id,
                engine_id=self._engine_id,
                lease_id=self.state.lease_id,
                action=action,
                kv_budget_bytes=self.state.kv_budget_bytes,
                compute_share=self.state.compute_share,
                expires_at_us=self._anchor.utc_us(self.state.expires_ns),
                step=self.state.step,
                reason=reason,
            ),
            durable=durable,
        )
