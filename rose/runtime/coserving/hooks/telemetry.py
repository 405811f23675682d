"""Measures an engine and writes its load, step times and spans to the arbiter page."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.requests import RequestLog, last_token_ns
from rose.runtime.coserving.kv.memory import KvClaim
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span, SpanRecord
from rose.runtime.coserving.scheduler import SchedulerView, arrived_ns, context_tokens, handed_ns
from rose.runtime.policy import credit
from rose.runtime.policy.credit import LiveRequest
from rose.runtime.policy.kv import under_pressure
from rose.runtime.policy.slack import Budgets, Hold, LeaseTerms, ServingLoad, late_by, room_ns
from rose.runtime.policy.steptime import LinearFit, StepTimes, attended

_FIRST_TOKEN = "_rose_first_token"
_WORKED, _DELAYED = "_rose_worked_ns", "_rose_delayed_ns"  # Totals when the request arrived.
_QUIET_NS = 100_000_000  # while rollouts do not need the load, it is written only this often
_USUAL_PROMPTS = 64  # the usual request is the median of this many prompts


class EngineTelemetry:
    """Measures how long an engine's steps take, and subtracts interruptions. With the overlap schedule, a step begins
    before the previous step ends. Therefore, each begin and each end is reported with the number of its step."""

    def __init__(self, view: SchedulerView, page: ArbiterPage, party: Party, kind: Span) -> None:
        self._view, self._page, self._party, self.kind = view, page, party, kind
        #: By step number: its begin, and the interruptions by then (rollouts' time, or waits), ns.
        self._begun: dict[int, tuple[int, int]] = {}
        self._previous_end_ns = self._previous_excluded_ns = 0
        self._steps = 0
        self._computes_in_launch = False
        self.disturbed = False  #: Whether the running step shared the device, so that its length teaches nothing.
        self.times = StepTimes.unknown()

    def _excluded_ns(self, now_ns: int) -> int:
        raise NotImplementedError

    def begin(self, number: int) -> None:
        now = monotonic_ns()
        if not self._begun:
            self._page.open_span(self._party, self.kind, now)
        self._begun[number] = now, self._excluded_ns(now)

    def end(self, number: int, batch: Any) -> None:
        if (begun := self._begun.pop(number, None)) is None:
            return
        # Steps end in order, so an older one never ends.
        for older in [other for other in self._begun if other < number]:
            del self._begun[older]
        if not self._begun:
            self._close(monotonic_ns(), len(batch.reqs))
        if not self._computes_in_launch:
            self._measure(batch, *begun)

    def _measure(self, batch: Any, began_ns: int, excluded_before_ns: int) -> None:
        now = monotonic_ns()
        # With the overlap schedule a step begins before the previous step ends: count only its own time.
        length_ns = now - max(began_ns, self._previous_end_ns)
        excluded_now_ns = self._excluded_ns(now)
        excluded_ns = excluded_now_ns - max(excluded_before_ns, self._previous_excluded_ns)
        self._previous_end_ns, self._previous_excluded_ns = now, excluded_now_ns
        self._measured(batch, length_ns, excluded_ns)
        self.disturbed = False

    def _measured(self, batch: Any, length_ns: int, excluded_ns: int) -> None:
        if not self.disturbed:
            self._learn(batch, max(1, length_ns - excluded_ns))

    def forget(self, number: int) -> None:
        self._begun.pop(number, None)
        if not self._begun:
            self._close(monotonic_ns(), 0)

    def _close(self, now_ns: int, requests: int) -> None:
        self._page.close_span(self._party, now_ns, aux=requests)

    def _learn(self, batch: Any, duration_ns: int) -> None:
        if batch.forward_mode.is_extend() and batch.extend_num_tokens:
            self._view.note_prefill(batch)
        self.times = _observed(self.times, batch, duration_ns)
        self._steps += 1
        page, party = self._page, self._party
        page.set(party, Field.STEPS, self._steps)
        page.set(party, Field.DECODE_ERROR_PPM, round(self.times.decode.error_share * 1e6))
        page.set(party, Field.PREFILL_ERROR_PPM, round(self.times.prefill.error_share * 1e6))

    def _say_memory(self) -> None:
        page, party = self._page, self._party
        page.set(party, Field.KV_TOKENS_USED, self._view.kv_tokens_used())
        page.set(party, Field.KV_TOKENS_CACHED, self._view.kv_tokens_cached())


def _observed(times: StepTimes, batch: Any, duration_ns: int) -> StepTimes:
    if batch.forward_mode.is_decode():
        return times.observe_decode(*_decoded(batch.reqs), duration_ns)
    if batch.forward_mode.is_extend() and batch.extend_num_tokens:
        return times.observe_prefill(*_prefilled(batch), duration_ns)
    return times


def _fit_of(times: StepTimes, batch: Any) -> tuple[str, LinearFit, tuple[float, ...]]:
    """Return the kind of a step, the fit of this kind, and the step's features."""
    if batch.forward_mode.is_decode():
        return "decode", times.decode, (1.0, *_decoded(batch.reqs))
    return "prefill", times.prefill, (1.0, *_prefilled(batch))


def _decoded(requests: Collection[Any]) -> tuple[int, int]:
    return len(requests), sum(map(context_tokens, requests))


def _prefilled(batch: Any) -> tuple[int, float]:
    return int(batch.extend_num_tokens or 0), sum(map(attended, batch.extend_lens or (), batch.prefix_lens or ()))


class _FirstToken(NamedTuple):
    at_ns: int
    worked_ns: int  # In all by then: rollouts' time while serving rested,
    work_ns: int  # rollouts' work beside serving's steps,
    delayed_ns: int  # and serving's delay.


def _waits(request: Any, later_ns: int, budgets: Budgets, now_ns: int, worked_ns: int, work_ns: int) -> LiveRequest:
    """Return a request whose next token needs `later_ns` of serving's steps after the step that begins."""
    first: _FirstToken | None = getattr(request, _FIRST_TOKEN, None)
    if first is None:
        return LiveRequest(None, 0, 0, arrived_ns(request) + budgets.of(request.priority).ttft_ns - later_ns)
    due_ns = _next_token_due_ns(request, budgets, now_ns) - later_ns
    return LiveRequest(now_ns - first.at_ns, worked_ns - first.worked_ns, work_ns - first.work_ns, due_ns)


def _next_token_due_ns(request: Any, budgets: Budgets, now_ns: int) -> int:
    return last_token_ns(request, now_ns) + budgets.of(request.priority).tpot_ns


class ServingTelemetry(EngineTelemetry):
    def __init__(self, view: SchedulerView, page: ArbiterPage) -> None:
        super().__init__(view, page, Party.SERVING, Span.SERVING)
        self._computes_in_launch = view.computes_in_launch
        self._prompts: deque[int] = deque(maxlen=_USUAL_PROMPTS)
        self._prompts_seen = 0
        self._usual_tokens = 0
        self._counts = {"finished": 0, "alone": 0, "lending": 0}
        self._said_ns = 0
        self._said_at_end = False  # whether the load was written at a step's end, and nothing arrived since
        self._lent = False
        self._busy = False
        self._wanted = False  # in the last load
        self._claim = KvClaim(page)
        self.requests = RequestLog(page)
        self._interference = {"decode": credit.Interference(), "prefill": credit.Interference()}
        self._delays: deque[tuple[int, int]] = deque(maxlen=4)  # (end, delay) of the last steps, ns.
        self._grants = 0
        self._delayed_ns = 0
        self._work_ns = page.get(Party.ROLLOUT, Field.WORK_NS)  # at the last step's end
        self._clean = True  # whether no rollout work was done beside the last step
        self._next: Any = None  # the last launched batch

    def _excluded_ns(self, now_ns: int) -> int:
        return self._page.rollout_worked_ns(now_ns)

    def _measured(self, batch: Any, length_ns: int, excluded_ns: int) -> None:
        page, now = self._page, monotonic_ns()
        work = page.get(Party.ROLLOUT, Field.WORK_NS)
        beside, self._work_ns = max(0, work - self._work_ns), work
        clean, self._clean = beside == 0 and (self._clean or not batch.forward_mode.is_decode()), beside == 0
        # Rollouts that yield are soon gone. Others, or a kernel's compilation, run beside the step.
        if 2 * excluded_ns >= length_ns:
            return
        if clean:
            self._learn(batch, max(1, length_ns - excluded_ns))
        kind, fit, features = _fit_of(self.times, batch)
        if beside and fit.fitted:
            delay_ns = length_ns - excluded_ns - round(fit.predict_ns(features) or 0)
            self._interference[kind] = self._interference[kind].observe(beside, delay_ns, fit.spread_ns, now)
            self._delayed_ns += delay_ns
            self._delays.append((now, delay_ns))
            page.set(Party.SERVING, Field.DELAYED_NS, self._delayed_ns)
            page.set(Party.SERVING, Field.FACTOR_PPM, round(self._interference["decode"].factor * 1e6))

    def _grant(self, batch: Any) -> None:
        page, now = self._page, monotonic_ns()
        lease = page.lease()
        if lease.expires_ns <= now or not lease.gives_credit:
            if page.get(Party.SERVING, Field.CREDIT_NS):
                self._say_credit(0, 0, Hold.SERVING_STEP)
            return
        work = page.get(Party.ROLLOUT, Field.WORK_NS)
        kind, fit, features = _fit_of(self.times, batch)
        fewer = min(lease.stretch, credit.STRETCH_MAX)
        requests, context = _decoded(batch.reqs)
        self._grants += 1
        grant = credit.grant(
            credit.CreditFacts(
                lease=lease,
                ttft_budget_ns=page.budgets().ttft_min_ns,
                live=[] if kind == "prefill" and credit.stops_for_arrivals(lease) else self._live(batch, now, work),
                step_ns=round(fit.predict_ns(features) or 0) if fit.knows(features) else None,
                fewer_decode_ns=self.times.decode_ns(requests / fewer, context / fewer),
                spread_ns=fit.spread_ns,
                largest_prefill_ns=self.times.prefill_ns(page.max_prompt_tokens()),
                usual_prefill_ns=self._usual_prefill_ns(),
                layer_ns=page.get(Party.ROLLOUT, Field.LAYER_NS),
                room_in_memory=self._room_in_memory(lease),
                others=page.get(Party.AGENT, Field.OTHERS) > 0,
                control=self._grants % credit.CONTROL_EVERY < 2,
                interference=self._interference[kind],
                now_ns=now,
            )
        )
        self._say_credit(work + grant.work_ns if grant.work_ns else 0, grant.until_ns, grant.limit)

    def _live(self, batch: Any, now_ns: int, work_ns: int) -> list[LiveRequest]:
        """Return all live requests, or none where more steps than this one and a decode come before their tokens."""
        page, requests, others, more = self._page, {*batch.reqs}, [], bool(self._view.waiting)
        decode_ns: int | None = 0
        if not batch.forward_mode.is_decode():
            others = [request for request in self._view.running if request not in requests]
            decode_ns = self.times.decode_ns(*_decoded([*requests, *others]))
            more |= _decoded(requests)[1] > sum(batch.prefix_lens or ()) + _prefilled(batch)[0]
        if more or decode_ns is None:
            return []
        # On CPU cores the overlap schedule publishes a prefill's tokens only after the next decode step.
        own_ns = decode_ns if self._computes_in_launch else 0
        budgets, worked = page.budgets(), page.rollout_worked_ns(now_ns)
        return [
            _waits(request, later_ns, budgets, now_ns, worked, work_ns)
            for some, later_ns in ((requests, own_ns), (others, decode_ns))
            for request in some
            if not request.finished()
        ]

    def _room_in_memory(self, lease: LeaseTerms) -> bool:
        memory, view = self._page.memory(), self._view
        if memory is None or under_pressure(memory):
            return False
        return credit.room_in_memory(used=view.kv_tokens_used(), total=view.kv_tokens_total, stretch=lease.stretch)

    def _say_credit(self, credit_ns: int, until_ns: int, limit: Hold) -> None:
        page = self._page
        page.set(Party.SERVING, Field.CREDIT_UNTIL_NS, until_ns)
        page.set(Party.SERVING, Field.CREDIT_NS, credit_ns)
        page.set(Party.SERVING, Field.CREDIT_LIMIT, limit)

    def withdraw(self) -> None:
        """Withdraw the credit that is left, if it ends when a request arrives. Thread-safe."""
        if self._page.get(Party.SERVING, Field.CREDIT_NS) and credit.stops_for_arrivals(self._page.lease()):
            self._say_credit(0, 0, Hold.SERVING_STEP)

    def arriving(self) -> None:
        """If a message waits to be received, withdraw the credit, and say on the page that serving wants the device."""
        if self._lent and self._view.knocked:
            self.withdraw()
            self._want(monotonic_ns())

    def arrived(self) -> None:
        """Note requests that have arrived. Say on the page, before their first step, that serving wants the device."""
        now = monotonic_ns()
        if self._view.waiting:
            self.withdraw()
            self._want(now)
            new = [request for request in self._view.waiting if not hasattr(request, _WORKED)]
            if new:
                worked = self._page.rollout_worked_ns(now)
                for request in new:
                    came = arrived_ns(request)
                    waited = sum(min(delay, end - came) for end, delay in self._delays if end > came)
                    setattr(request, _WORKED, worked)
                    setattr(request, _DELAYED, self._delayed_ns - waited)
                    self._note_prompt(len(request.origin_input_ids))
                self.requests.arrived(new, now)
                self._note_arrival(new[0])
        if not self._said_at_end or self._view.waiting:
            self.say()
        self._said_at_end = False
        if self._claim.due:
            self._want(monotonic_ns())
            self._say_credit(0, 0, Hold.SERVING_MEMORY)
            self._claim.wait()

    def begins(self, number: int, batch: Any) -> None:
        """Note that a step was launched. It may begin on the device only after the previous step."""
        now = monotonic_ns()
        self._want(now)
        if batch.forward_mode.is_extend():
            self.requests.arrived(batch.reqs, now)
        if self._computes_in_launch or not self._begun:
            self._grant(batch)
        if self._computes_in_launch:
            self._work_ns = self._page.get(Party.ROLLOUT, Field.WORK_NS)
        self._next = batch
        super().begin(number)

    def launched(self, number: int, batch: Any) -> None:
        if self._computes_in_launch and number in self._begun:
            self._measure(batch, *self._begun[number])

    def _note_arrival(self, request: Any) -> None:
        wish_ns, handover_ns = self._page.serving_wants(), handed_ns(request)
        if not self._begun and handover_ns is not None and self._previous_end_ns < min(handover_ns, wish_ns):
            since_arrival_ns, since_handover_ns = (max(0, wish_ns - at) for at in (arrived_ns(request), handover_ns))
            span = SpanRecord(Span.ARRIVAL, wish_ns, wish_ns, since_arrival_ns, since_handover_ns)
            self._page.write_span(self._party, span)

    def end(self, number: int, batch: Any) -> None:
        super().end(number, batch)
        now = monotonic_ns()
        worked = self._page.rollout_worked_ns(now)
        for request in batch.reqs:
            self._note_token(request, now, worked)
        self.say(batch.reqs)
        self._said_at_end = True
        if self._begun and not self._computes_in_launch:
            self._grant(self._next)

    def _want(self, now_ns: int) -> None:
        page = self._page
        if not page.serving_wants():
            page.set(Party.SERVING, Field.WANTED_SINCE_NS, now_ns)
            if page.get(Party.ROLLOUT, Field.LOOKED_NS) >= page.get(Party.SERVING, Field.FIRST_WANTED_NS):
                page.set(Party.SERVING, Field.FIRST_WANTED_NS, now_ns)

    def _say_memory(self) -> None:
        # Written before the held memory, so that memory that moves between the two is never counted twice.
        self._page.set(self._party, Field.KV_TOKENS_TO_COME, self._view.kv_tokens_to_come())
        super()._say_memory()

    def _note_prompt(self, tokens: int) -> None:
        self._prompts.append(tokens)
        self._prompts_seen += 1
        if self._prompts_seen % 16 == 1:
            self._usual_tokens = int(median(self._prompts))

    def _note_token(self, request: Any, now_ns: int, worked: int) -> None:
        if not request.output_ids:
            return  # In the middle of a chunked prefill.
        if not hasattr(request, _FIRST_TOKEN):
            work = self._page.get(Party.ROLLOUT, Field.WORK_NS)
            setattr(request, _FIRST_TOKEN, _FirstToken(now_ns, worked, work, self._delayed_ns))
        self.requests.token(request, now_ns)
        if request.finished() and self.requests.ended(request, getattr(request, _FIRST_TOKEN).at_ns):
            self._count(request, now_ns, worked)

    def aborted(self, request: Any, status: int | None) -> None:
        first: _FirstToken | None = getattr(request, _FIRST_TOKEN, None)
        self.requests.ended(request, None if first is None else first.at_ns, status=status)

    def _count(self, request: Any, now_ns: int, worked_ns: int) -> None:
        budgets = self._page.budgets().of(request.priority)
        self._counts["finished"] += 1
        first: _FirstToken = getattr(request, _FIRST_TOKEN)
        lent_ns = first.worked_ns - getattr(request, _WORKED, first.worked_ns)
        lent_ns += first.delayed_ns - getattr(request, _DELAYED, first.delayed_ns)
        late = late_by(took_ns=first.at_ns - arrived_ns(request), lent_ns=lent_ns, budget_ns=budgets.ttft_ns)
        gaps = len(request.output_ids) - 1
        if gaps > 0:
            lent_ns = worked_ns - first.worked_ns + self._delayed_ns - first.delayed_ns
            late = late or late_by(took_ns=now_ns - first.at_ns, lent_ns=lent_ns, budget_ns=budgets.tpot_ns * gaps)
        if late is not None:
            self._counts[late] += 1

    def say(self, just_stepped: Sequence[Any] = ()) -> None:
        """Write serving's load to the page. Unfinished requests in `just_stepped` always count as running."""
        page, now = self._page, monotonic_ns()
        lease = page.lease()
        lent = self._lent = lease.expires_ns > now
        waiting = self._view.waiting
        # While another step is launched already, rollouts look at the credit alone.
        quiet = self._wanted and bool(self._begun) if lent else self._stays_busy(just_stepped)
        if quiet and now - self._said_ns < _QUIET_NS:
            if lent:
                self._say_memory()
            self._set_wanted(bool(self._begun or waiting), now)
            self._claim.look(lease, now)
            return
        held_off = set(waiting)
        running = [
            request
            for request in {*self._view.running, *just_stepped}
            if not request.finished() and request not in held_off
        ]
        worked = page.rollout_worked_ns(now)
        decode_ns = self.times.decode_ns(len(running), sum(map(context_tokens, running)))
        room = self._room_ns(running, now, worked, decode_ns or 0, lease.regret_share)
        self._wanted = wanted = bool(self._begun or waiting) or (
            bool(running) and room < page.get(Party.ROLLOUT, Field.PREEMPT_NS)
        )
        self._set_wanted(wanted, now)
        self._say_memory()
        self._claim.look(lease, now)
        self._busy = bool(waiting or running)
        if not self._busy:
            self.requests.rests()
        self._said_ns = now
        budgets = page.budgets()
        prompts = [context_tokens(request) for request in waiting]
        prefill_ns = self.times.prefill_ns(sum(prompts), sum(map(attended, prompts))) if waiting else 0
        page.set(Party.SERVING, Field.WAITING, len(waiting))
        page.set(Party.SERVING, Field.RUNNING, len(running))
        page.set_load(
            ServingLoad(
                wanted=wanted,
                waiting=len(waiting),
                waiting_prefill_ns=prefill_ns,
                first_token_due_ns=min(
                    (arrived_ns(request) + budgets.of(request.priority).ttft_ns for request in waiting), default=0
                ),
                running=len(running),
                next_token_due_ns=min((_next_token_due_ns(request, budgets, now) for request in running), default=0),
                decode_ns=decode_ns,
                largest_prefill_ns=self.times.prefill_ns(page.max_prompt_tokens()),
                usual_prefill_ns=self._usual_prefill_ns(),
                ttft_budget_ns=budgets.ttft_min_ns,
                regret_room_ns=room,
                worked_ns=worked,
                finished=self._counts["finished"],
                late_alone=self._counts["alone"],
                late_by_lending=self._counts["lending"],
            )
        )

    def _usual_prefill_ns(self) -> int | None:
        return self.times.prefill_ns(self._usual_tokens) if self._usual_tokens else None

    def _stays_busy(self, just_stepped: Sequence[Any]) -> bool:
        if self._begun or self._view.waiting:
            return True
        return self._busy and (not just_stepped or any(not request.finished() for request in just_stepped))

    def _set_wanted(self, wanted: bool, now_ns: int) -> None:
        if wanted:
            self._want(now_ns)
        elif self._page.serving_wants():
            self._page.set(Party.SERVING, Field.WANTED_SINCE_NS, 0)

    def _room_ns(self, running: Iterable[Any], now_ns: int, worked_ns: int, next_ns: int, share: float) -> int:
        rooms = []
        for request in running:
            lent = worked_ns - getattr(request, _WORKED, worked_ns)
            solo = now_ns - arrived_ns(request) - lent + next_ns
            rooms.append(room_ns(solo_ns=solo, lent_ns=lent, share=share))
        return min(rooms, default=0)


class RolloutTelemetry(EngineTelemetry):
    def __init__(self, view: SchedulerView, page: ArbiterPage) -> None:
        super().__init__(view, page, Party.ROLLOUT, Span.ROLLOUT)
        self.waited_ns = 0  # total wait of its steps: in yields, and for a core that serving had
        self.after_wish_ns = 0  # how long the last layer computed after serving wished
        #: On a GPU: how long the layers of the current step took (0: not measured), and the fit over earlier steps.
        self.layers_ns = 0
        self.layer_times = StepTimes.unknown()
        #: Spans in which other threads worked on weights. Only the scheduler's thread may write spans to the ring.
        self._synced: deque[SpanRecord] = deque()

    def synced(self, began_ns: int, ended_ns: int) -> None:
        self._synced.append(SpanRecord(Span.SYNC, began_ns, ended_ns))

    def end(self, number: int, batch: Any) -> None:
        super().end(number, batch)
        tokens = sum(bool(request.output_ids) for request in batch.reqs)  # None while a prompt is prefilled in part.
        self._page.set(Party.ROLLOUT, Field.TOKENS, self._page.get(Party.ROLLOUT, Field.TOKENS) + tokens)

    def _excluded_ns(self, now_ns: int) -> int:
        return self.waited_ns

    def _learn(self, batch: Any, duration_ns: int) -> None:
        super()._learn(batch, duration_ns)
        if self.layers_ns:
            self.layer_times = _observed(self.layer_times, batch, self.layers_ns)

    def step_ns(self, chunk_tokens: int, *, layers: bool = False) -> tuple[int | None, bool]:
        """Return the predicted ns of the next step (None: unknown), and whether this step is a prefill. With `layers`,
        the prediction is for the layers alone, if their times are known."""
        kind, first, second = self._view.next_step(chunk_tokens)
        if kind == "prefill":
            times = self.layer_times if layers and self.layer_times.prefill.fitted else self.times
            return (times.prefill_ns(first, second) if times.prefill.fitted else None), True
        times = self.layer_times if layers and self.layer_times.decode.fitted else self.times
        return (times.decode_ns(first, second) if times.decode.fitted else None), False

    def prefill_tokens_within(self, limit_ns: int) -> int | None:
        """Return how many tokens can be prefilled in `limit_ns`, or None. If layer times are known, only they count."""
        times = self.layer_times if self.layer_times.prefill.fitted else self.times
        return times.prefill_tokens_within(limit_ns, self._view.chunked_prefix)

    def worked(self, from_ns: int, to_ns: int, *, latency_ns: int = 0, aux: int = 0) -> None:
        page = self._page
        page.set(Party.ROLLOUT, Field.WORKED_NS, page.get(Party.ROLLOUT, Field.WORKED_NS) + max(0, to_ns - from_ns))
        page.close_span(Party.ROLLOUT, max(from_ns, to_ns), aux=aux, latency_ns=latency_ns)

    def _close(self, now_ns: int, requests: int) -> None:
        opened = self._page.get(Party.ROLLOUT, Field.OPEN_SINCE_NS)
        kind = self._page.get(Party.ROLLOUT, Field.OPEN_KIND)
        if opened and kind == Span.ROLLOUT:
            self.worked(opened, now_ns, latency_ns=self.after_wish_ns, aux=requests)
        elif opened and kind == Span.BESIDE:
            self._page.close_span(Party.ROLLOUT, now_ns)

    def say(self) -> None:
        while self._synced:
            self._page.write_span(Party.ROLLOUT, self._synced.popleft())
        self._page.set(Party.ROLLOUT, Field.WAITING, len(self._view.waiting))
        self._page.set(Party.ROLLOUT, Field.RUNNING, len(self._view.running))
        self._say_memory()
