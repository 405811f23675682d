"""Records serving's requests. If requests come too fast, one row stands for several similar requests."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from rose.clock import Anchor
from rose.events import REQUESTS_PER_ROW_MAX, LedgerAction, Record, Request
from rose.runtime.coserving.page import RING_REQUESTS, ArbiterPage, Field, Finish, Party, RequestRecord
from rose.runtime.policy.slack import Budgets

_CLIENT_ERRORS = range(400, 500)
_TIMES = {"ttft_ns": None, "tpot_mean_ns": None, "tpot_max_ns": None}
_NOTHING_KNOWN = {"prompt_tokens": 0, "output_tokens": 0, "e2e_ns": 0, **_TIMES}


class RequestRecorder:
    """Records requests that ended after `began_ns` (monotonic), at most `per_s_max` rows per second. If
    `takes_over`, a former agent has already recorded the earlier requests."""

    def __init__(
        self,
        device_id: str,
        engine_id: str,
        page: ArbiterPage,
        anchor: Anchor,
        record: Record,
        lease_id: Callable[[int], str],
        budgets: Budgets,
        *,
        began_ns: int,
        takes_over: bool,
        per_s_max: float,
        window_ns: int,
    ) -> None:
        self._device_id, self._engine_id, self._lease_id = device_id, engine_id, lease_id
        self._page, self._anchor, self._record, self._budgets = page, anchor, record, budgets
        self._per_s_max, self._window_ns = per_s_max, window_ns
        self._began_ns = self._until_ns = began_ns
        written = page.get(Party.SERVING, Field.REQUESTS)
        self._tail = max(0, written - RING_REQUESTS) if takes_over else written
        self._pending: list[RequestRecord] = []
        self._dead_pid = 0 if page.alive(Party.SERVING) else page.get(Party.SERVING, Field.PID)
        self._draw = random.Random(0)  # noqa: S311 (a sample, not secrets)

    def tell(self, until_ns: int) -> None:
        records, self._tail, lost = self._page.drain_requests(self._tail)
        self._pending += [record for record in records if record.ended_ns > self._began_ns]
        over = [self._event(record) for record in self._pending if record.ended_ns <= until_ns]
        self._pending = [record for record in self._pending if record.ended_ns > until_ns]
        rows = math.ceil(self._per_s_max * max(1.0, (until_ns - self._until_ns) / 1e9))
        self._until_ns = until_ns
        for request in sampled(over, rows, self._window_ns, self._draw):
            self._record(request, durable=False)
        if lost:
            detail = json.dumps({"requests": lost})
            self._record(LedgerAction(device_id=self._device_id, action="requests_lost", detail_json=detail))
        self._tell_death(until_ns)

    def _event(self, record: RequestRecord) -> Request:
        reason = None if record.status is None else f"HTTP status {record.status}"
        return self._request(
            record.ended_ns,
            self._budgets.of(record.priority),
            lease_id=self._lease_id(record.lease_number) if record.lease_number else None,
            outcome=_outcome(record),
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            queue_ns=record.queue_ns,
            ttft_ns=record.ttft_ns,
            tpot_mean_ns=record.tpot_mean_ns,
            tpot_max_ns=record.tpot_max_ns,
            e2e_ns=record.ended_ns - record.arrived_ns,
            reason=reason,
            finish_reason=Finish(record.finish).name.lower(),
            priority=record.priority,
        )

    def _request(self, at_ns: int, budgets: Budgets, **fields: Any) -> Request:
        return Request(
            at_us=self._anchor.utc_us(at_ns),
            device_id=self._device_id,
            engine_id=self._engine_id,
            request_id=f"{self._device_id}-{self._anchor.utc_ns(at_ns)}",
            source="engine",
            ttft_budget_ns=budgets.ttft_ns,
            tpot_budget_ns=budgets.tpot_ns,
            send_delay_ns=0,
            **fields,
        )

    def _tell_death(self, at_ns: int) -> None:
        pid = self._page.get(Party.SERVING, Field.PID)
        if pid == self._dead_pid or self._page.alive(Party.SERVING):
            return
        self._dead_pid = pid
        in_flight = self._page.get(Party.SERVING, Field.IN_FLIGHT)
        for requests in _parts(in_flight, math.ceil(in_flight / REQUESTS_PER_ROW_MAX)):
            failed = {"outcome": "failed", "reason": "the serving engine died", "requests": requests}
            self._record(self._request(at_ns, self._budgets, **failed, **_NOTHING_KNOWN))


def _outcome(record: RequestRecord) -> Literal["completed", "failed", "aborted"]:
    if record.finish != Finish.ABORT:
        return "completed"
    return "aborted" if record.status is None or record.status in _CLIENT_ERRORS else "failed"


def sampled(requests: Sequence[Request], rows: int, window_ns: int, draw: random.Random) -> Iterator[Request]:
    """Yield a sample of about `rows` requests. Each sampled request stands for several similar requests, and has their
    number in its field `requests`. Similar requests arrived in one window, with the same class, lease and outcome."""
    if len(requests) <= rows:
        yield from requests
        return
    alike: dict[Hashable, list[Request]] = defaultdict(list)
    for request in requests:
        arrived_ns = 1000 * request.at_us - request.e2e_ns
        waited_ns = request.e2e_ns if request.ttft_ns is None else request.ttft_ns
        promises = waited_ns <= request.ttft_budget_ns, (request.tpot_mean_ns or 0) <= request.tpot_budget_ns
        measured = request.ttft_ns is not None, request.tpot_mean_ns is not None
        key = request.outcome, request.finish_reason, request.reason, request.priority, request.lease_id
        alike[*key, *measured, *promises, arrived_ns // window_ns].append(request)
    for group in alike.values():
        count = max(math.ceil(len(group) * rows / len(requests)), math.ceil(len(group) / REQUESTS_PER_ROW_MAX))
        for request, stands_for in zip(draw.sample(group, count), _parts(len(group), count), strict=True):
            yield replace(request, requests=stands_for)


def _parts(whole: int, count: int) -> list[int]:
    return [(whole + part) // count for part in range(count)]
