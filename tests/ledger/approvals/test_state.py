from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.ledger.approvals import state
from rose.ledger.approvals.records import Record
from rose.ledger.approvals.state import DAY_US, EXPIRES_AFTER_US, State, fold
from rose.ledger.approvals.values import Rules
from rose.ledger.layout import LedgerError
from tests.long_form import usual

KEYS = ["aa" * 32, "bb" * 32, "cc" * 32]
STRICT = Rules(approve=frozenset({"retain", "rules"}))


@dataclass
class Story:
    """Events of the writer `controls` as they come to stand, on a clock that only goes on."""

    records: list[Record] = field(default_factory=list)
    now_us: int = 10**15

    def add(self, action: str, key: int = 0, fault: str | None = None, **body: Any) -> None:
        body = {"at_us": self.now_us, **body}
        self.records.append(Record(len(self.records), self.now_us, action, body, "ann@host", KEYS[key], fault))

    def propose(self, key: int = 0, act: str = "retain", **request: Any) -> str:
        self.add(state.PROPOSED, key, act=act, request=request, content={"n": len(self.records)})
        return state.proposal_id(self.records[-1].body, KEYS[key])

    @property
    def stands(self) -> State:
        return fold(self.records)


def test_an_act_goes_from_proposal_to_approval_to_being_done() -> None:
    story = Story()
    name = story.propose(keep_days=30)
    steps = []
    for key, action, more in ((1, state.APPROVED, {}), (0, state.BEGUN, {}), (2, state.CARRIED_OUT, {"result": {}})):
        steps.append(story.stands.proposals[name].status(story.now_us))
        story.add(action, key, proposal=name, **more)
    assert [*steps, story.stands.proposals[name].status(story.now_us)] == [
        "open",
        "approved",
        "approved",
        "carried out",
    ]
    assert story.stands.faults == []


def test_an_approval_by_the_key_that_proposed_does_not_count_under_whatever_name() -> None:
    story = Story()
    name = story.propose()
    record = Record(1, story.now_us, state.APPROVED, {"proposal": name, "at_us": story.now_us}, "ben@other", KEYS[0])
    stands = fold([*story.records, record])
    assert stands.proposals[name].approved is None
    assert "another identity" in stands.faults[0]


def test_an_approval_after_a_week_or_a_rejection_does_not_count() -> None:
    story = Story()
    name = story.propose()
    story.now_us += EXPIRES_AFTER_US
    story.add(state.APPROVED, 1, proposal=name)
    other = story.propose(keep_days=1)
    story.add(state.REJECTED, 1, proposal=other, reason="no")
    story.add(state.APPROVED, 2, proposal=other)
    stands = story.stands
    assert [stands.proposals[one].status(story.now_us) for one in (name, other)] == ["expired", "rejected"]
    assert len(stands.faults) == 2


def test_an_approver_that_the_rules_no_longer_name_does_not_count() -> None:
    story = Story()
    story.add(state.RULES, rules=Rules(approvers=frozenset({KEYS[1]})).to_json(), proposal=None)
    name = story.propose()
    story.add(state.APPROVED, 1, proposal=name)
    assert story.stands.may_begin(story.stands.proposals[name], story.now_us) is None
    story.add(state.RULES, rules=Rules(approvers=frozenset({KEYS[2]})).to_json(), proposal=None)
    assert "approvers" in str(story.stands.may_begin(story.stands.proposals[name], story.now_us))


def test_one_proposal_loosens_the_rules_once_and_only_as_it_says() -> None:
    story, loose = Story(), Rules().to_json()
    story.add(state.RULES, rules=STRICT.to_json(), proposal=None)
    name = story.propose(act="rules", rules=loose)
    story.add(state.RULES, rules=loose, proposal=name)
    assert story.stands.rules == STRICT, "nobody has approved it"
    story.add(state.APPROVED, 1, proposal=name)
    story.add(state.RULES, rules=Rules(log_access="exports").to_json(), proposal=name)
    assert story.stands.rules.approve == STRICT.approve
    story.add(state.RULES, rules=loose, proposal=name)
    assert story.stands.rules == Rules()
    story.add(state.RULES, rules=STRICT.to_json(), proposal=None)
    story.add(state.RULES, rules=loose, proposal=name)
    assert story.stands.rules == STRICT


def test_a_release_without_the_approval_it_needs_does_not_count() -> None:
    story = Story()
    story.add(state.RULES, rules=STRICT.to_json(), proposal=None)
    story.add(state.HELD, run="r", since_us=None, until_us=None, reason="case 5")
    (name,) = story.stands.holds
    story.add(state.RELEASED, hold=name, proposal=None, reason="over")
    assert [hold.id for hold in story.stands.in_force] == [name]
    proposal = story.propose(release=name)
    story.add(state.APPROVED, 1, proposal=proposal)
    story.add(state.RELEASED, hold=name, proposal=proposal, reason="over")
    assert story.stands.in_force == []


@pytest.mark.parametrize("action", sorted(state._STEPS))
@pytest.mark.parametrize(
    "body", [{}, {"proposal": 5}, {"proposal": []}, {"rules": []}, {"act": 1, "request": 2, "content": 3}, {"hold": {}}]
)
def test_whatever_an_event_holds_the_others_are_read(action: str, body: dict[str, Any]) -> None:
    story = Story()
    story.add(action, **body)
    name = story.propose()
    assert list(story.stands.proposals) == [name]
    assert len(story.stands.faults) == 1


def test_an_id_is_named_by_how_it_begins() -> None:
    assert state.one_id(["ab12", "cd34"], "CD", "proposal") == "cd34"
    for text, says in (("", "more than one"), ("a", "more than one"), ("e", "no proposal begins")):
        with pytest.raises(LedgerError, match=says):
            state.one_id(["ab12", "ac34"], text, "proposal")


#: (step, key, which proposal, signed well, days that pass before).
_STEP = st.tuples(
    st.sampled_from([*["propose", state.APPROVED, state.BEGUN, state.CARRIED_OUT] * 2, state.REJECTED, state.RULES]),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([0, 0, 0, 1, 4]),
)


@pytest.mark.long
@settings(max_examples=usual(300, long=5000))
@given(st.lists(_STEP, min_size=6, max_size=25))
def test_nothing_is_carried_out_that_no_second_key_approved_and_nothing_twice(steps: list[tuple[Any, ...]]) -> None:
    story = Story()
    story.add(state.RULES, rules=STRICT.to_json(), proposal=None)
    names: list[str] = []
    #: What a reader of the story by hand would note: who proposed and when, who approved, what ended it.
    notes: dict[str, dict[str, Any]] = {}
    done: list[str] = []
    loosened = False
    for action, key, which, signed, days in [("propose", 0, 0, True, 0), *steps]:
        story.now_us += days * DAY_US
        fault = None if signed else "its signature is wrong, or missing"
        if action == "propose":
            story.add(
                state.PROPOSED, key, fault, act="rules", request={"rules": Rules().to_json()}, content={"n": len(names)}
            )
            names.append(state.proposal_id(story.records[-1].body, KEYS[key]))
            if signed:
                notes[names[-1]] = {"by": key, "at_us": story.now_us}
            continue
        name = names[which % len(names)] if names else "none"
        story.add(action, key, fault, proposal=name, rules=Rules().to_json(), result={}, reason="r")
        note = notes.get(name)
        if note is None or not signed:
            continue
        alive = story.now_us < note["at_us"] + EXPIRES_AFTER_US and not note.get("rejected") and name not in done
        if action == state.APPROVED and alive and key != note["by"]:
            note["approved"] = True
        elif action == state.REJECTED and alive and not note.get("begun"):
            note["rejected"] = True
        elif action == state.BEGUN and alive and note.get("approved"):
            note["begun"] = True
        elif action == state.CARRIED_OUT and note.get("begun") and name not in done:
            done.append(name)
        elif action == state.RULES and alive and note.get("approved"):
            # It is in force, and nothing after it is governed any more.
            done.append(name)
            loosened = True
            break
    stands = story.stands
    assert {name for name, one in stands.proposals.items() if one.carried_out is not None} == set(done)
    assert len(done) == len(set(done))
    for name in done:
        assert stands.proposals[name].approved is not None
        assert stands.proposals[name].approved.key != stands.proposals[name].proposed.key  # type: ignore[union-attr]
    assert (stands.rules == Rules()) == loosened
