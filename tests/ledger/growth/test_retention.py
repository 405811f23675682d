from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from rose.clock import utc_us
from rose.ledger import layout, segments
from rose.ledger.approvals import holds, proposals, records, state
from rose.ledger.approvals.proposals import ApprovalNeededError
from rose.ledger.evidence import keys
from rose.ledger.growth import compaction, retention, rollup
from rose.ledger.growth.archive import archive, restore
from rose.ledger.growth.left_out import left_out
from rose.ledger.layout import LedgerError
from rose.ledger.rules import Rules, set_rules
from rose.ledger.upkeep import jobs
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from tests import programs
from tests.long_form import usual

DAY_US = 86_400_000_000
FIRST_US = 1_700_000_000_000_000
APPROVE = Rules(approve=frozenset({"retain"}))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, lease: Any) -> Path:
    """Three compacted files of writer w, of a run each, a day apart, and an open epoch; rolled up."""
    root = tmp_path_factory.mktemp("pristine") / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
        for n in range(7):
            with LedgerWriter.open(root, "w", f"run{n // 2}") as writer:
                writer.record(lease(lease_id=f"l{n}", at_us=FIRST_US + n // 2 * DAY_US))
            if n and n % 2 == 0:
                compaction.compact(root, grace_s=0)
    rollup.roll_up(root)
    assert _states(root) == ["compacted"] * 3 + ["live"]
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path, identity: Any) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "ledger"))


def _states(root: Path) -> list[str]:
    return [part.state for part in layout.chain(root, "w")]


def _file(first: int, last: int | None = None) -> str:
    return f"compacted/w/{first:06d}-{first if last is None else last:06d}.parquet"


def _delete(root: Path, **options: Any) -> Any:
    return archive(root, older_than_days=30, to=None, delete=True, grace_s=0, **options)


def test_a_plan_names_what_leaves_and_what_stays(root: Path) -> None:
    holds.add(root, "case 5", run_id="run1")
    mine = [one.to_json() for one in retention.plan(root, 30) if one.part.writer == "w"]
    assert [(one["file"], one["runs"], one["events"]) for one in mine] == [(_file(n), [f"run{n}"], 2) for n in range(3)]
    assert [one["first_us"] for one in mine] == [FIRST_US + n * DAY_US for n in range(3)]
    assert [one["kept"] is None for one in mine] == [True, False, True]
    assert "case" not in mine[1]["kept"]
    assert "run run1" in mine[1]["kept"]
    assert all(one["bytes"] > 0 for one in mine)
    assert retention.plan(root, 30_000) == []
    assert _states(root) == ["compacted"] * 3 + ["live"], "a plan does nothing"


def test_younger_events_than_the_rules_allow_are_never_deleted(root: Path) -> None:
    set_rules(root, Rules(retention_min_days=60))
    with pytest.raises(LedgerError, match="for 60 days at least, and 30 is less"):
        _delete(root)
    assert "archived" not in _states(root)
    assert archive(root, older_than_days=60, to=None, delete=True, grace_s=0).left == 3


@pytest.mark.parametrize(
    ("hold", "stay"),
    [
        ({"run_id": "run1"}, [1]),
        pytest.param({"since_us": FIRST_US + DAY_US}, [1, 2], marks=pytest.mark.long),
        pytest.param({"until_us": FIRST_US + DAY_US}, [0], marks=pytest.mark.long),
        ({"since_us": FIRST_US + DAY_US, "until_us": FIRST_US + DAY_US + 1}, [1]),
        ({"since_us": FIRST_US + 1, "until_us": FIRST_US + DAY_US}, []),
    ],
)
def test_what_is_under_hold_stays_until_it_is_released(
    root: Path, tmp_path: Path, hold: dict[str, Any], stay: list[int]
) -> None:
    made = holds.add(root, "case 5", **hold)
    copied = archive(root, older_than_days=30, to=str(tmp_path / "away"), delete=True, grace_s=0)
    expected = ["compacted" if n in stay else "archived" for n in range(3)]
    assert _states(root)[:3] == expected
    reasons = [reason for reason in copied.skipped if made.short_id in reason]
    assert len(reasons) == bool(stay)
    assert _delete(root).left == 0
    assert _states(root)[:3] == expected
    holds.release(root, made.short_id, "case closed")
    assert _delete(root).left == len(stay)
    assert verify(root).problems == []


def test_a_held_file_says_so_also_where_others_leave_under_an_approval(root: Path, identity: Any) -> None:
    made = holds.add(root, "case 5", run_id="run1")
    set_rules(root, APPROVE)
    with pytest.raises(ApprovalNeededError) as waits:
        _delete(root)
    with identity("ben"):
        proposals.approve(root, waits.value.proposal.id)
    done = _delete(root)
    assert done.left == 2
    reason = f"it is under hold {made.short_id} (run run1)"
    assert done.skipped[reason] == 1
    assert "it is not in the approved proposal" not in str(done.skipped)
    assert _delete(root).skipped[reason] == 1, "where nothing leaves, so that nothing is proposed"


@pytest.mark.parametrize("field", ["file", "manifest_sha256", "part events", "events", "bytes", "runs", "parts"])
def test_what_is_not_what_it_says_is_not_approved(root: Path, identity: Any, field: str) -> None:
    set_rules(root, APPROVE)
    content = dict(retention.proposed(root, retention.before_us(30)))
    parts = [dict(part) for part in content["parts"]]
    other: dict[str, Any] = {"events": 2, "bytes": 7, "runs": ["run0"], "parts": parts[:2]}
    match field:
        case "file":
            parts[1]["file"] = _file(7)
        case "manifest_sha256":
            parts[1]["manifest_sha256"] = "0" * 64
        case "part events":
            parts[1]["events"] = 0
        case _:
            content[field] = other[field]
    body = {"act": "retain", "request": {"keep_days": 30.0, "to": None}, "number": 0, "at_us": utc_us()}
    with records.exclusive(root):
        records.append(
            root,
            state.PROPOSED,
            {**body, "content": {"parts": parts, **content} | ({} if field == "parts" else {"parts": parts})},
        )
    (name,) = proposals.load(root).proposals
    with identity("ben"), pytest.raises(LedgerError, match="is not what it says: ") as refused:
        proposals.approve(root, name)
    says = {"file": f"{_file(7)} is not in the ledger", "parts": "events is 4"}.get(field, field.removeprefix("part "))
    assert says in str(refused.value)


def test_events_that_are_not_merged_yet_are_counted(root: Path) -> None:
    left = left_out(root)
    assert (left.open_epochs, left.open_events, left.unmerged_epochs, left.unmerged_events) == (1, 1, 0, 0)
    tail = segments.recover(root, "w")
    assert tail is not None
    segments.begin_epoch(root, tail)
    left = left_out(root)
    assert (left.open_epochs, left.open_events, left.unmerged_epochs, left.unmerged_events) == (0, 0, 1, 1)
    assert rollup.roll_up(root).open_events == 0


def test_deletion_needs_a_second_identity_and_takes_exactly_what_was_approved(
    root: Path, identity: Any, lease: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rules(root, APPROVE)
    with pytest.raises(ApprovalNeededError) as waits:
        _delete(root)
    with pytest.raises(ApprovalNeededError, match="waits for an approval"):
        _delete(root)
    proposal = waits.value.proposal
    assert [part["file"] for part in proposal.content["parts"]] == [_file(n) for n in range(3)]
    assert (proposal.content["events"], proposal.content["runs"]) == (6, ["run0", "run1", "run2"])
    # Of the next epoch, as old as the others, nobody has approved anything.
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    for _ in range(3):
        with LedgerWriter.open(root, "w", "run4") as writer:
            writer.record(lease(at_us=FIRST_US))
    compaction.compact(root, grace_s=0)
    rollup.roll_up(root)
    assert _states(root).count("compacted") == 4
    with identity("ben"):
        proposals.approve(root, proposal.id)
    held = holds.add(root, "case 6", run_id="run2")
    done = _delete(root)
    assert _states(root)[:4] == ["archived", "archived", "compacted", "compacted"]
    assert done.left == 2
    assert {reason.split(";")[0] for reason in done.skipped} >= {"it is not in the approved proposal"}
    assert done.approval["proposed_key"] != done.approval["approved_key"]
    with identity("ben"):
        with pytest.raises(ApprovalNeededError) as waits:
            holds.release(root, held.id, "over")
    with pytest.raises(ApprovalNeededError) as again:
        _delete(root)
    assert [part["file"] for part in again.value.proposal.content["parts"]] == [_file(3, 4)]
    proposals.approve(root, waits.value.proposal.id)
    assert holds.release(root, held.id, "over").released is not None
    stands = proposals.load(root)
    assert stands.proposals[proposal.id].carried_out is not None
    assert stands.faults == []
    assert verify(root).problems == []


def test_archiving_with_delete_needs_the_approval_too(root: Path, tmp_path: Path, identity: Any) -> None:
    set_rules(root, APPROVE)
    to = str(tmp_path / "away")
    assert archive(root, older_than_days=30, to=to, delete=False).parts == 3
    with pytest.raises(ApprovalNeededError) as waits:
        archive(root, older_than_days=30, to=to, delete=True)
    with identity("ben"):
        proposals.approve(root, waits.value.proposal.id)
    with pytest.raises(ApprovalNeededError):
        _delete(root)
    assert archive(root, older_than_days=30, to=to, delete=True).left == 3
    assert restore(root, to).parts == 3
    with pytest.raises(ApprovalNeededError, match="was proposed"):
        archive(root, older_than_days=30, to=to, delete=True)


def test_nothing_is_proposed_where_nothing_is_old_enough(root: Path) -> None:
    set_rules(root, APPROVE)
    assert archive(root, older_than_days=30_000, to=None, delete=True).parts == 0
    assert proposals.load(root).proposals == {}


@pytest.mark.long
def test_a_job_leaves_one_proposal_and_later_does_what_was_approved(
    root: Path, identity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rules(root, APPROVE)
    (job,) = [one for one in jobs.ledger_jobs(jobs.Settings(keep_days=30)) if one.name == "retain"]
    first, second = jobs.run_job(root, job), jobs.run_job(root, job)
    assert (first.status, second.status) == ("ok", "ok")
    (proposal,) = proposals.load(root).proposals.values()
    assert first.result is not None
    assert second.result is not None
    assert first.result["waits_for"] == second.result["waits_for"] == proposal.short_id
    with identity("ben"):
        proposals.reject(root, proposal.id, "not in this quarter")
    after = jobs.run_job(root, job)
    assert after.result is not None
    assert "not in this quarter" in str(after.result["why"])
    assert len(proposals.load(root).proposals) == 1
    later_us = utc_us() + 8 * DAY_US
    monkeypatch.setattr(proposals, "utc_us", lambda: later_us)
    jobs.run_job(root, job)
    newest = list(proposals.load(root).proposals.values())[-1]
    assert newest.id != proposal.id
    with identity("ben"):
        proposals.approve(root, newest.id)
    done = jobs.run_job(root, job)
    assert done.result is not None
    assert done.result["left"] == 3


#: Deletes what was approved, and is killed just before the n-th of its renames and removals.
_KILLED = """
import os, signal, sys
os.environ["ROSE_LEDGER_KEY"] = sys.argv[3]
from rose.ledger.growth import archive
root, left = sys.argv[1], int(sys.argv[2])
def hook(event, args):
    global left
    if event in ("os.rename", "os.remove"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
archive.archive(root, older_than_days=30, to=None, delete=True, grace_s=0)
print(int(sys.argv[2]) - left)
"""


@pytest.mark.long
def test_killed_between_approval_and_act_and_anywhere_in_it_the_act_is_done_once(
    root: Path, tmp_path: Path, identity: Any
) -> None:
    set_rules(root, APPROVE)
    with pytest.raises(ApprovalNeededError) as waits:
        _delete(root)
    with identity("ben"):
        proposals.approve(root, waits.value.proposal.id)
    key = os.environ[keys.VARIABLE]
    total = tmp_path / "total"
    shutil.copytree(root, total)
    code, text = programs.run(_KILLED, total, 0, key)
    assert code == 0
    points = int(text)
    assert points > 10
    for at in range(1, points + 1, usual(17, long=1)):
        copy = Path(shutil.copytree(root, tmp_path / f"at{at}"))
        code, _ = programs.run(_KILLED, copy, at, key)
        assert code == -signal.SIGKILL
        status = proposals.load(copy).proposals[waits.value.proposal.id].carried_out
        if status is None:
            _delete(copy)
        assert _states(copy)[:3] == ["archived"] * 3, at
        stands = proposals.load(copy)
        assert (len(stands.proposals), stands.faults) == (1, []), at
        assert stands.proposals[waits.value.proposal.id].carried_out is not None
        compaction.compact(copy, grace_s=0)
        assert verify(copy).problems == [], at
        shutil.rmtree(copy)
