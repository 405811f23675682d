"""Acts of two hands: who asks for one leaves a proposal, another identity approves it, then it is carried out once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rose.clock import iso, utc_us
from rose.ledger import layout, segments
from rose.ledger.approvals import records, state
from rose.ledger.approvals.state import Proposal, Signed, State
from rose.ledger.approvals.values import CONTROLS_WRITER
from rose.ledger.layout import LedgerError

#: Gives what an act would do, in plain values.
Content = Callable[[], Mapping[str, Any]]


class ApprovalNeededError(LedgerError):
    """Nothing was done: the act waits for another identity. `proposal` is what it has to approve."""

    exit_code = 3

    def __init__(self, proposal: Proposal, why: str) -> None:
        super().__init__(why)
        self.proposal = proposal


@dataclass(slots=True)
class Grant:
    """That an act may be carried out now. Whoever carries it out puts what came of it into `result`."""

    proposal: Proposal
    approved: Signed
    result: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Who proposed it and who approved it, for the record of the act."""
        proposed, approved = self.proposal.proposed, self.approved
        return {
            "proposal": self.proposal.id,
            "proposed_by": proposed.by,
            "proposed_key": proposed.key,
            "approved_by": approved.by,
            "approved_key": approved.key,
        }


def load(root: Path | str) -> State:
    """What stands in the ledger at `root`. Raises LedgerError."""
    return state.fold(records.read(layout.check(root)))


class Standing:
    """What stands in a ledger, read again only after something was added."""

    def __init__(self, root: Path) -> None:
        self._root, self._head, self._state = root, "", State()

    def now(self) -> State:
        """What stands now; nobody may be adding to it meanwhile. Raises LedgerError."""
        # A head names the newest event's file by its hash, so it is another one after each event.
        head = segments.read_head(self._root, CONTROLS_WRITER).segment
        if head is None or head != self._head:
            self._head, self._state = "", load(self._root)
            self._head = head or ""
        return self._state


@contextmanager
def permitted(
    root: Path, act: str, request: Mapping[str, Any], content: Content, *, unattended: bool = False
) -> Iterator[Grant | None]:
    """The right to carry out `act` within the block; None where the rules do not ask for an approval.

    With an approved proposal of exactly this `request` it is the right to do what the proposal's content says. A block
    that is cut short may be entered again until the proposal expires, so what it does must be told by `proposal.id`
    from what it did before. Without one, `content()` becomes a proposal; `unattended`, not where the last one was
    rejected, until that expires. Raises ApprovalNeededError, and LedgerError.
    """
    # No writer's name begins with a dot.
    with layout.locked(root / "locks" / ".acts.lock"):
        if act not in load(root).rules.approve:
            yield None
            return
        grant = _granted(root, act, request, content, unattended=unattended)
        with records.exclusive(root):
            records.append(root, state.BEGUN, {"proposal": grant.proposal.id, "at_us": utc_us()})
        yield grant
        finish(root, grant.proposal.id, grant.result)


def finish(root: Path, name: str, result: Mapping[str, Any]) -> None:
    """Note that what was begun under a proposal is done. Raises LedgerError."""
    with records.exclusive(root):
        records.append(root, state.CARRIED_OUT, {"proposal": name, "at_us": utc_us(), "result": result})


def record(
    root: Path, act: str, request: Mapping[str, Any], action: str, body: Mapping[str, Any], content: Mapping[str, Any]
) -> None:
    """Record an event that is an act in itself, under the approval that the rules ask for.

    `content` tells who approves what it is about. Raises ApprovalNeededError, and LedgerError.
    """
    with layout.locked(root / "locks" / ".acts.lock"):
        name = None
        if act in load(root).rules.approve:
            name = _granted(root, act, request, lambda: content).proposal.id
        with records.exclusive(root):
            records.append(root, action, {**body, "proposal": name, "at_us": utc_us()})


def approve(root: Path | str, text: str) -> Proposal:
    """Approve the open proposal whose id begins with `text`, under this user's key.

    Raises LedgerError, also where a retention is not about the files that it names as they are.
    """
    root = layout.check(root)
    with records.exclusive(root):
        stands, key, now_us = load(root), records.signing_key().public, utc_us()
        proposal = stands.proposals[state.one_id(stands.proposals, text, "proposal")]
        if (status := proposal.status(now_us)) != "open":
            raise LedgerError(f"proposal {proposal.short_id} cannot be approved: it is {status}")
        if refusal := stands.refusal(proposal, key):
            raise LedgerError(f"this approval of proposal {proposal.short_id} would not count: {refusal}")
        if proposal.act == "retain" and (fault := _retention_fault(root, proposal, stands)) is not None:
            raise LedgerError(
                f"proposal {proposal.short_id} is not what it says: {fault}. Reject it, and have it proposed anew"
            )
        records.append(root, state.APPROVED, {"proposal": proposal.id, "at_us": now_us})
    return load(root).proposals[proposal.id]


def reject(root: Path | str, text: str, reason: str) -> Proposal:
    """Reject the proposal whose id begins with `text`; its proposer may, too. Raises LedgerError."""
    root = layout.check(root)
    if not reason.strip():
        raise LedgerError("a rejection needs a reason; give --reason")
    with records.exclusive(root):
        stands, now_us = load(root), utc_us()
        proposal = stands.proposals[state.one_id(stands.proposals, text, "proposal")]
        status = proposal.status(now_us)
        if proposal.begun is not None or status not in ("open", "approved"):
            how = "it was begun" if proposal.begun is not None and status == "approved" else f"it is {status}"
            raise LedgerError(f"proposal {proposal.short_id} cannot be rejected: {how}")
        records.append(root, state.REJECTED, {"proposal": proposal.id, "at_us": now_us, "reason": reason})
    return load(root).proposals[proposal.id]


def _retention_fault(root: Path, proposal: Proposal, stands: State) -> str | None:
    """In what a proposal of `retain` is not about what lies in the ledger; None if it is."""
    # It needs this module.
    from rose.ledger.growth import retention

    if (name := proposal.request.get("release")) is None:
        return retention.proposal_fault(root, proposal.content)
    hold = stands.holds.get(name)
    if hold is None or hold.released is not None:
        return f"there is no hold {name} in force"
    return None if proposal.content.get("hold") == hold.what else f"hold {hold.short_id} is on {hold.what}"


def _granted(root: Path, act: str, request: Mapping[str, Any], content: Content, *, unattended: bool = False) -> Grant:
    """The right to carry out an act now. Raises ApprovalNeededError, after it was proposed if it had not been."""
    stands, now_us = load(root), utc_us()
    matching = stands.matching(act, request)
    for proposal in matching:
        if proposal.approved is not None and stands.may_begin(proposal, now_us) is None:
            return Grant(proposal, proposal.approved)
    for proposal in matching:
        if proposal.status(now_us) == "open":
            raise ApprovalNeededError(proposal, f"{act} waits for an approval: {_way_on(proposal)}")
    if unattended and matching and matching[0].rejected is not None and now_us < matching[0].expires_us:
        newest, rejected = matching[0], matching[0].rejected
        why = f"{act}: proposal {newest.short_id} was rejected by {rejected.text}: {rejected.reason}"
        raise ApprovalNeededError(newest, why)
    with records.exclusive(root):
        # With their number, so that one that is made again in the same microsecond has an id of its own.
        number = len(load(root).proposals)
        body = {"act": act, "request": request, "content": content(), "number": number, "at_us": now_us}
        records.append(root, state.PROPOSED, body)
    proposal = load(root).matching(act, request)[0]
    raise ApprovalNeededError(
        proposal, f"{act} needs the approval of another identity and was proposed: {_way_on(proposal)}"
    )


def _way_on(proposal: Proposal) -> str:
    return (
        f"proposal {proposal.short_id} by {proposal.proposed.text}, which expires {iso(proposal.expires_us)[:16]}Z. "
        f"After `rose ledger approve {proposal.short_id}` under another key, run this command again"
    )
