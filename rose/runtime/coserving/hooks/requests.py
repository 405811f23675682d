"""When a serving request ends, writes a record of it to the page: times, token counts and class, but no text or id."""

from collections.abc import Iterable
from typing import Any

from rose.clock import monotonic_ns
from rose.event_fields import AMOUNT_MAX
from rose.runtime.coserving.page import ArbiterPage, Field, Party, RequestRecord
from rose.runtime.coserving.questions import CLIENT_RECORDS
from rose.runtime.coserving.scheduler import arrived_ns, begun_ns, cached_tokens, finish_of

_LEASE = "_rose_lease_number"
_LAST_TOKEN, _LONGEST_GAP = "_rose_last_token_ns", "_rose_longest_gap_ns"
_ENDED = "_rose_ended"
#: Beginnings of ids of requests that are not recorded here: SGLang's health checks, and what its client records.
_OTHERS = ("HEALTH_CHECK", CLIENT_RECORDS)


class RequestLog:
    def __init__(self, page: ArbiterPage) -> None:
        self._page = page
        self._since_ns = monotonic_ns()
        self._in_flight = 0

    def arrived(self, requests: Iterable[Any], now_ns: int) -> None:
        """Note the current lease in each new request. A request with a grammar is noted only at its first step."""
        new = [request for request in requests if not hasattr(request, _LEASE)]
        if not new:
            return
        lease = self._page.lease()
        number = lease.number if lease.expires_ns > now_ns else 0
        for request in new:
            setattr(request, _LEASE, number)
            self._in_flight += self._recorded(request)
        self._page.set(Party.SERVING, Field.IN_FLIGHT, self._in_flight)

    def token(self, request: Any, now_ns: int) -> None:
        gap_ns = now_ns - getattr(request, _LAST_TOKEN, now_ns)
        if gap_ns > getattr(request, _LONGEST_GAP, 0):
            setattr(request, _LONGEST_GAP, gap_ns)
        setattr(request, _LAST_TOKEN, now_ns)

    def ended(self, request: Any, first_ns: int | None, *, status: int | None = None) -> bool:
        """Write the record of an ended request to the page. Return False if it had ended before. `first_ns` is the time
        of the first token. `status` is the HTTP status of a request that was aborted outside a step."""
        if hasattr(request, _ENDED):
            return False
        setattr(request, _ENDED, True)
        if self._recorded(request):
            self._write(request, first_ns, status)
        return True

    def _write(self, request: Any, first_ns: int | None, status: int | None) -> None:
        page, now_ns = self._page, monotonic_ns()
        if hasattr(request, _LEASE):
            self._in_flight = max(0, self._in_flight - 1)
        began_ns, came_ns = begun_ns(request), arrived_ns(request)
        tpot_mean_ns = tpot_max_ns = None
        gaps = len(request.output_ids) - 1
        if first_ns is not None and gaps > 0:
            tpot_mean_ns = (last_token_ns(request, now_ns) - first_ns) // gaps
            tpot_max_ns = getattr(request, _LONGEST_GAP, 0)
        finish, finish_status = finish_of(request)
        priority: int | None = request.priority
        page.write_request(
            RequestRecord(
                arrived_ns=came_ns,
                ended_ns=now_ns,
                queue_ns=None if began_ns is None else max(0, began_ns - came_ns),
                ttft_ns=None if first_ns is None else first_ns - came_ns,
                tpot_mean_ns=tpot_mean_ns,
                tpot_max_ns=tpot_max_ns,
                prompt_tokens=len(request.origin_input_ids),
                cached_tokens=cached_tokens(request),
                output_tokens=len(request.output_ids),
                finish=finish,
                status=finish_status if status is None else status,
                priority=None if priority is None or abs(priority) > AMOUNT_MAX else priority,
                lease_number=getattr(request, _LEASE, 0),
            )
        )
        page.set(Party.SERVING, Field.IN_FLIGHT, self._in_flight)

    def _recorded(self, request: Any) -> bool:
        """Return whether to record the request. A request for 0 tokens is SGLang's own, and only caches a prompt."""
        if request.sampling_params.max_new_tokens == 0 or str(request.rid).startswith(_OTHERS):
            return False
        return arrived_ns(request) >= self._since_ns

    def rests(self) -> None:
        if self._in_flight:
            self._in_flight = 0
            self._page.set(Party.SERVING, Field.IN_FLIGHT, 0)


def last_token_ns(request: Any, now_ns: int) -> int:
    """Return when the request's latest token came, or `now_ns` if none has come yet."""
    last_ns: int = getattr(request, _LAST_TOKEN, now_ns)
    return last_ns
