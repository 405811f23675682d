"""`rose report`, `rose borrow` and `rose correct`."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rose import events
from tests.pricing.conftest import data, refused, rose, succeeded


def test_report_prints_tables_and_json(sample_kept: Path) -> None:
    assert "By price of a rollout token" in succeeded(rose("report", ledger=sample_kept))
    as_json = data(rose("report", "--json", "--run", "run", ledger=sample_kept))
    # Devices $4.70, sync $0.04.
    assert as_json["report"]["time"]["rows"][-1]["amortized"]["value"] == 4_740_000_000


def test_what_is_wrong_is_named(sample_kept: Path, tmp_path: Path) -> None:
    (tmp_path / "decisions.csv").write_text("device_id\ns0\n")
    nowhere = tmp_path / "nowhere"
    for arguments, says in (
        (("report", "--run", "nope"), "no run 'nope'"),
        (("report", "--ledger", nowhere), "is not a ledger"),
        (("report", "--price-book", "nowhere.toml"), "cannot read price book nowhere.toml"),
        (("borrow", "--only", "provision", "--run", "nope"), "no run 'nope'"),
        (("borrow", "--only", "provision", "--decisions", tmp_path / "decisions.csv"), "decisions.csv"),
        (("correct", "--run", "nope"), "no run 'nope'"),
        (("correct", "--only", "frontier", "--ledger", nowhere), "is not a ledger"),
        (("correct", "--only", "verifiers", "--probes", nowhere), "cannot read probes"),
        (("correct", "--by", "week"), "'week' is not one of"),
    ):
        refused(rose(*arguments, ledger=sample_kept), says)


def test_what_a_ledger_s_names_would_have_a_terminal_do_is_shown_and_not_done(
    write_ledger: Any, sample_made: list[events.Event]
) -> None:
    evil = "\x1b]0;owned\x07\x9b2J [/bold] \u202egnp"
    started, *rest = sample_made
    died = events.Engine(engine_id=evil, action="died", role="rollout", model="m", reason=evil, at_us=started.at_us)
    root = write_ledger([dataclasses.replace(started, name=evil, trace=evil), died, *rest])
    for arguments, code in (((), 0), (("--run", evil), 2)):
        shown = rose("report", *arguments, ledger=root)
        assert shown.exit_code == code, shown.output
        assert not set(shown.output) & {"\x1b", "\x07", "\x9b", "\u202e"}
        assert "\\x1b" in shown.output


def test_borrowing_in_json_has_whole_nano_dollars_and_a_stamp_on_each_figure(sample_kept: Path) -> None:
    answer = data(rose("borrow", "--only", "price", "--json", ledger=sample_kept))
    assert not {"risk", "compare"} & set(answer)
    rows = {row["term"]: row["in all"] for row in answer["price"]["terms"]["rows"]}
    assert rows["m"]["value"] == 62_715_000
    assert (rows["m"]["unit"], rows["m"]["view"], rows["m"]["provenance"]) == ("nano_usd", "marginal", "replay")


def test_a_borrow_of_a_changed_ledger_is_refused(sample: Path) -> None:
    head = next(sample.glob("heads/*.json"))
    head.write_text(head.read_text(encoding="utf-8").replace('"', " ", 1), encoding="utf-8")
    refused(rose("borrow", "--only", "provision", ledger=sample), "does not verify")


def test_verifiers_are_shown_with_names_as_they_are(sample_kept: Path, tmp_path: Path) -> None:
    probes = tmp_path / "probes.csv"
    probes.write_text("probe,verifier,probability,correct,accepted\np,[bold]v,0.8,1,1\nq,[bold]v,0.4,0,0\n")
    shown = succeeded(rose("correct", "--only", "verifiers", "--probes", probes, ledger=sample_kept))
    assert "[bold]v" in shown
    assert "2 probes were judged by all" in shown


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "borrow --run run",
            ["Harm to serving is unknown", "Roll-forward by UTC day", "useful tokens otherwise", "USD, "],
        ),
        ("correct --by step", ["C3 = CPM x R", "Levers by saving", "By step", "; USD, replay, EXAMPLE PRICES,"]),
        ("correct --only frontier --run run", ["threshold with three", "not clear"]),
    ],
)
def test_every_question_is_answered_with_its_stamp(sample_kept: Path, command: str, says: list[str]) -> None:
    shown = succeeded(rose(*command.split(), ledger=sample_kept))
    assert [words for words in says if words not in shown] == []
