"""What stands after the events of the writer `controls`: the rules in force, proposals, holds, adopted price books.

Decided from the events alone, in their order. What is not signed, or lacks the approval that the rules in force before
it ask for, changes nothing but that a stricter rule holds; `faults` name it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rose.clock import iso
from rose.ledger.approvals.records import Record, canonical, sha256_of
from rose.ledger.approvals.values import PUBLIC_KEY, Rules
from rose.ledger.layout import LedgerError

DAY_US = 86_400_000_000
#: A proposal that was not carried out by then never is.
EXPIRES_AFTER_US = 7 * DAY_US
#: How much of an id people see and type.
ID_CHARACTERS = 12

RULES, PROPOSED, APPROVED, REJECTED = "rules", "proposed", "approved", "rejected"
BEGUN, CARRIED_OUT = "begun", "carried out"
HELD, RELEASED, ADOPTED = "held", "released", "adopted"

Status = Literal["open", "approved", "rejected", "expired", "carried out"]


@dataclass(frozen=True, slots=True)
class Signed:
    """Who said something, and when (UTC microseconds)."""

    by: str
    key: str
    at_us: int
    reason: str | None = None

    @property
    def text(self) -> str:
        """Name, and enough of the key to tell two apart."""
        return f"{self.by} (key {self.key[:ID_CHARACTERS]})"


@dataclass(slots=True)
class Proposal:
    """An act that waits for a second identity. `request` is what was asked for; `content` what would be done."""

    id: str
    act: str
    request: Mapping[str, Any]
    content: Mapping[str, Any]
    proposed: Signed
    approved: Signed | None = None
    rejected: Signed | None = None
    begun: Signed | None = None
    carried_out: Signed | None = None
    result: Mapping[str, Any] | None = None

    @property
    def short_id(self) -> str:
        return self.id[:ID_CHARACTERS]

    @property
    def expires_us(self) -> int:
        return self.proposed.at_us + EXPIRES_AFTER_US

    def status(self, now_us: int) -> Status:
        """How it stands at a time. One that was begun in time and cut short may be gone on with until it expires."""
        if self.carried_out is not None:
            return "carried out"
        if self.rejected is not None:
            return "rejected"
        if now_us >= self.expires_us:
            return "expired"
        return "open" if self.approved is None else "approved"


@dataclass(slots=True)
class Hold:
    """Events that are not deleted: those of a run, or of [`since_us`, `until_us`) by `at_us`, UTC microseconds."""

    id: str
    run_id: str | None
    since_us: int | None
    until_us: int | None
    reason: str
    added: Signed
    released: Signed | None = None

    @property
    def short_id(self) -> str:
        return self.id[:ID_CHARACTERS]

    @property
    def what(self) -> str:
        """In words."""
        if self.run_id is not None:
            return f"run {self.run_id}"
        since = "" if self.since_us is None else f" from {iso(self.since_us)[:19]}Z on"
        until = "" if self.until_us is None else f" before {iso(self.until_us)[:19]}Z"
        return f"events{since}{until}"

    def covers(self, run_id: str | None, first_us: int, last_us: int) -> bool:
        """Whether it holds an event of a run, of which some lie from `first_us` to `last_us`, both included."""
        if self.run_id is not None:
            return run_id == self.run_id
        return (self.until_us is None or first_us < self.until_us) and (
            self.since_us is None or last_us >= self.since_us
        )


@dataclass(slots=True)
class State:
    """All of it as it stands."""

    rules: Rules = field(default_factory=Rules)
    #: Who set the rules in force; None: nobody did.
    rules_set: Signed | None = None
    proposals: dict[str, Proposal] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    #: By SHA-256 of the price book's text.
    adopted: dict[str, Signed] = field(default_factory=dict)
    #: Who adopted a price book last, and its text; None where none was, or only by a version that kept no text.
    adopted_book: tuple[Signed, str] | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def in_force(self) -> list[Hold]:
        """Holds that were not released."""
        return [hold for hold in self.holds.values() if hold.released is None]

    def matching(self, act: str, request: Mapping[str, Any]) -> list[Proposal]:
        """Proposals of exactly this, newest first."""
        wanted = canonical([act, request])
        proposals = [one for one in self.proposals.values() if canonical([one.act, one.request]) == wanted]
        return proposals[::-1]

    def refusal(self, proposal: Proposal, key: str) -> str | None:
        """Why an approval by `key` does not count; None if it does."""
        if key == proposal.proposed.key:
            return "it is by the key that proposed it; another identity has to approve"
        if self.rules.approvers and key not in self.rules.approvers:
            return "the rules do not name its key among the approvers"
        return None

    def may_begin(self, proposal: Proposal, now_us: int) -> str | None:
        """Why an act may not be carried out now under this proposal; None if it may."""
        if (status := proposal.status(now_us)) != "approved" or proposal.approved is None:
            return f"its proposal is {status}"
        return self.refusal(proposal, proposal.approved.key)


def proposal_id(body: Mapping[str, Any], key: str) -> str:
    """SHA-256 of all that a proposal says and of the key of who says it."""
    return sha256_of([body, key])


def one_id(ids: Iterable[str], text: str, what: str) -> str:
    """The one id that begins with `text`. Raises LedgerError."""
    matches = [one for one in ids if one.startswith(text.lower())]
    if len(matches) != 1 or not text:
        ask = "give more of its id" if matches else f"`rose ledger {what}s` lists them".replace("holds", "hold list")
        raise LedgerError(f"{'more than one' if matches else 'no'} {what} begins with {text!r}; {ask}")
    return matches[0]


def fold(records: Iterable[Record]) -> State:
    """What stands after `records`, in their order."""
    state = State()
    for record in records:
        step = _STEPS.get(record.action)
        if step is None:
            continue
        fault = record.fault
        try:
            fault = fault or step(state, record)
        except (LedgerError, KeyError, TypeError, ValueError, AttributeError) as error:
            fault = f"it is not of the form that `rose` writes: {error}"
        if fault is not None:
            state.faults.append(f"event {record.seq} of writer controls ({record.action}) does not count: {fault}")
            if record.action == RULES:
                _hold_to_the_stricter(state, record)
    return state


def _hold_to_the_stricter(state: State, record: Record) -> None:
    try:
        state.rules = state.rules.stricter(Rules.from_json(record.body["rules"]))
    except (LedgerError, KeyError, TypeError, ValueError, AttributeError):
        # Nothing that it asks for can be read, so what was in force stays.
        return


def _set_rules(state: State, record: Record) -> str | None:
    new = Rules.from_json(record.body["rules"])
    if fault := _consume(state, record, "rules", {"rules": new.to_json()}):
        return fault
    state.rules, state.rules_set = new, _signed(record)
    return None


def _propose(state: State, record: Record) -> str | None:
    body, key = record.body, record.key
    act, request, content = body["act"], body["request"], body["content"]
    if not (isinstance(act, str) and isinstance(request, dict) and isinstance(content, dict)):
        return "act, request or content has the wrong type"
    if repeated := request.keys() & content.keys():
        return f"its content repeats {min(repeated)!r} of its request, so that one could be taken for the other"
    name = proposal_id(body, key)
    if name in state.proposals:
        return "it appears twice"
    state.proposals[name] = Proposal(name, act, request, content, _signed(record))
    return None


def _approve(state: State, record: Record) -> str | None:
    proposal, signed = _proposal(state, record), _signed(record)
    if refusal := state.refusal(proposal, record.key):
        return f"{refusal} (proposal {proposal.short_id})"
    if (status := proposal.status(signed.at_us)) != "open":
        return f"proposal {proposal.short_id} was {status}"
    proposal.approved = signed
    return None


def _reject(state: State, record: Record) -> str | None:
    proposal, signed = _proposal(state, record), _signed(record)
    if proposal.begun is not None or (status := proposal.status(signed.at_us)) not in ("open", "approved"):
        return f"proposal {proposal.short_id} was {'begun' if proposal.begun else status}"
    proposal.rejected = signed
    return None


def _begin(state: State, record: Record) -> str | None:
    proposal, signed = _proposal(state, record), _signed(record)
    if fault := state.may_begin(proposal, signed.at_us):
        return f"{fault} (proposal {proposal.short_id})"
    proposal.begun = proposal.begun or signed
    return None


def _carry_out(state: State, record: Record) -> str | None:
    proposal = _proposal(state, record)
    if proposal.begun is None or proposal.carried_out is not None:
        return f"proposal {proposal.short_id} was {'not begun' if proposal.begun is None else 'carried out before'}"
    proposal.carried_out, proposal.result = _signed(record), record.body["result"]
    return None


def _add_hold(state: State, record: Record) -> str | None:
    body = record.body
    run_id, since_us, until_us, reason = body["run"], body["since_us"], body["until_us"], body["reason"]
    times = [time for time in (since_us, until_us) if time is not None]
    if not all(isinstance(time, int) for time in times) or not isinstance(run_id, str | None):
        return "its run or its times have the wrong type"
    if (run_id is None) == (not times):
        return "it holds neither a run nor a period, or both"
    name = sha256_of([body, record.key])
    state.holds.setdefault(name, Hold(name, run_id, since_us, until_us, str(reason), _signed(record)))
    return None


def _release(state: State, record: Record) -> str | None:
    hold = state.holds.get(record.body["hold"])
    if hold is None or hold.released is not None:
        return "there is no such hold"
    if fault := _consume(state, record, "retain", {"release": hold.id}):
        return fault
    hold.released = _signed(record)
    return None


def _adopt(state: State, record: Record) -> str | None:
    sha256, text = record.body["sha256"], record.body.get("text")
    if text is not None and hashlib.sha256(text.encode()).hexdigest() != sha256:
        return "the text of its price book is not the one that its SHA-256 names"
    if fault := _consume(state, record, "prices", {"sha256": sha256}):
        return fault
    signed = _signed(record)
    state.adopted.setdefault(sha256, signed)
    if text is not None:
        state.adopted_book = signed, text
    return None


_STEPS: Mapping[str, Callable[[State, Record], str | None]] = {
    RULES: _set_rules,
    PROPOSED: _propose,
    APPROVED: _approve,
    REJECTED: _reject,
    BEGUN: _begin,
    CARRIED_OUT: _carry_out,
    HELD: _add_hold,
    RELEASED: _release,
    ADOPTED: _adopt,
}


def _consume(state: State, record: Record, act: str, request: Mapping[str, Any]) -> str | None:
    """Use up the proposal that an event names; why the event does not count if the rules ask for one and it has none.

    The event is the act, so both happen at once.
    """
    name = record.body["proposal"]
    if name is None:
        return "the rules ask for the approval of a second identity" if act in state.rules.approve else None
    proposal, signed = _proposal(state, record), _signed(record)
    if canonical([proposal.act, proposal.request]) != canonical([act, request]):
        return f"proposal {proposal.short_id} is about something else"
    if fault := state.may_begin(proposal, signed.at_us):
        return f"{fault} (proposal {proposal.short_id})"
    proposal.begun = proposal.carried_out = signed
    return None


def _proposal(state: State, record: Record) -> Proposal:
    name = record.body["proposal"]
    if name not in state.proposals:
        raise LedgerError(f"there is no proposal {name!r}")
    return state.proposals[name]


def _signed(record: Record) -> Signed:
    at_us, reason = record.body["at_us"], record.body.get("reason")
    if not isinstance(at_us, int) or not PUBLIC_KEY.fullmatch(record.key):
        raise LedgerError("it has no time, or no key")
    return Signed(record.by, record.key, at_us, None if reason is None else str(reason))
