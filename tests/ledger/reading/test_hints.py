from __future__ import annotations

from pathlib import Path

import pytest

from rose.ledger import catalog
from rose.ledger.reading import hints
from rose.ledger.reading.query import QueryError, query
from rose.ledger.writer import LedgerWriter


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hints") / "ledger"
    LedgerWriter.open(root, "w", "r").close()
    return root


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        # A name that is nearly right, in whatever clause it stands.
        (
            "SELECT kv_budget_granted FROM lease",
            "Did you mean kv_budget_granted_bytes or kv_budget_min_bytes or kv_budget_last_bytes?",
        ),
        ("SELECT l.durationns FROM lease AS l", "Did you mean duration_ns?"),
        ("FROM turn ORDER BY output_tokns", "Did you mean output_tokens or prompt_tokens?"),
        ("FROM turn JOIN lease USING (leaseid)", "Did you mean lease_id?"),
        ("SELECT * EXCLUDE (stepp) FROM lease", "Did you mean step?"),
        # One that is right in another view.
        ("SELECT Output_Tokens FROM lease", "output_tokens is a column of turn, trajectory, request and others"),
        ("SELECT kv_budget_granted_bytes FROM turn", "kv_budget_granted_bytes is a column of lease"),
        (
            "SELECT output_token FROM lease",
            "Did you mean output_tokens, a column of turn, trajectory, request and others?",
        ),
    ],
)
def test_a_column_that_is_not_known_is_answered_with_one_that_is(root: Path, text: str, hint: str) -> None:
    with pytest.raises(QueryError) as caught:
        query(root, text)
    assert str(caught.value).splitlines()[-1] == hint
    assert "Candidate bindings" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("SELECT colour FROM lease", "Candidate bindings: "),
        # The view has it, and what is selected from does not.
        ("SELECT reason FROM (SELECT step FROM lease_event)", 'Candidate bindings: "step"'),
    ],
)
def test_where_no_column_is_near_duckdb_s_candidates_stay(root: Path, text: str, candidates: str) -> None:
    with pytest.raises(QueryError) as caught:
        query(root, text)
    assert candidates in str(caught.value)


def test_a_message_of_something_else_stays_as_it_is(root: Path) -> None:
    with catalog.connect(root) as connection:
        assert (
            hints.explained(connection, "Conversion Error: no number", "SELECT 'x'::INT")
            == "Conversion Error: no number"
        )
