"""The shell by real keys: through prompt_toolkit's own pipe, and in a process on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from rose.ledger.reading import dictionary, named
from rose.ledger.reading.query import QueryError, Result, query
from rose.ledger.reading.shell import Shell, SqlCompleter, complete, history, interact, statements
from rose.ledger.writer import LedgerWriter

ENTER = "\r"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, lease: Any) -> Path:
    folder = tmp_path_factory.mktemp("shell") / "ledger"
    with LedgerWriter.open(folder, "w", "r") as writer:
        for n in range(3):
            writer.record(lease(lease_id=f"l{n}", at_us=n * 1_000_000))
    return folder


@pytest.fixture(scope="module")
def views() -> list[dictionary.View]:
    return dictionary.read()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """History goes to a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rose" / "sql_history"


@pytest.fixture
def typed(root: Path, views: list[dictionary.View], capsys: pytest.CaptureFixture[str]):
    """What the shell shows when these keys are typed."""

    def run(*keys: str) -> str:
        def run_named(asked: named.NamedQuery, texts: dict[str, str]) -> Result:
            return named.run(root, asked, named.values(asked, texts, now=named_now()))

        shell = Shell(views, lambda text: query(root, text, limit=2), run_named)
        with create_pipe_input() as pipe:
            pipe.send_text("".join(keys))
            interact(shell, "welcome", keys=pipe, screen=DummyOutput())
        return capsys.readouterr().out

    return run


def named_now() -> Any:
    from datetime import UTC, datetime

    return datetime(1970, 1, 1, 1, tzinfo=UTC)


def test_a_statement_spans_lines_until_its_semicolon(typed):
    shown = typed("select lease_id", ENTER, "from lease where lease_id = 'l1'", ENTER, ";", ENTER, ".quit", ENTER)
    assert shown.startswith("welcome\n")
    assert "│ l1" in shown
    assert "│ l0" not in shown
    assert re.search(r"^1 rows \(\d+ ms\)$", shown, re.MULTILINE)


def test_rows_are_limited_and_it_is_said(typed):
    shown = typed("from lease order by lease_id;", ENTER, "\x04")
    assert "│ l1" in shown
    assert "│ l2" not in shown
    assert "the first 2 rows, there are more (" in shown


def test_an_error_does_not_end_the_shell(typed):
    shown = typed("drop view lease;", ENTER, "select nonsense;", ENTER, "select 41 + 1 as answer;", ENTER, "\x04")
    assert "error: a DROP statement was given" in shown
    assert 'error: Binder Error: Referenced column "nonsense"' in shown
    assert "│ 42 " in shown


def test_several_statements_in_one_paste_run_in_turn(typed):
    shown = typed("\x1b[200~select 1 as a;\nselect 2 as b; -- done\x1b[201~", ENTER, "\x04")
    assert shown.index("│ 1 │") < shown.index("│ 2 │")


def test_ctrl_c_at_the_prompt_drops_the_line_and_ctrl_d_leaves(typed):
    assert "│ 7 " in typed("select 'forgot", "\x03", "select 7 as x;", ENTER, "\x04")


def test_the_commands_say_what_there_is(typed):
    shown = typed(".help", ENTER, ".tables", ENTER, ".schema lease", ENTER, ".queries", ENTER, ".quit", ENTER)
    assert ".query NAME [V=TEXT]" in shown
    assert "device_slice" in shown
    assert "kv_budget_min_bytes" in shown
    assert "harvest_share_by_day" in shown


@pytest.mark.parametrize("leave", ["exit", "exit;", "quit", "QUIT ;", "\\q", ".exit", ".quit;", "select 6 as x; exit;"])
def test_it_is_left_in_the_words_of_other_shells(typed, leave):
    shown = typed(leave, ENTER, "select 41 + 1 as answer;", ENTER, "\x04")
    assert "error" not in shown
    assert "42" not in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\\d", "One row for each lease"),
        ("show tables;", "One row for each lease"),
        ("\\dt", "One row for each lease"),
        ("\\d lease;", "granted_at"),
        (".schema lease;", "granted_at"),
        ("help", ".query NAME"),
        ("\\?", ".query NAME"),
        (".schema leese", "did you mean lease"),
    ],
)
def test_other_shells_words_do_what_they_do_there(typed, text, says):
    assert says in typed(text, ENTER, "\x04")


def test_a_named_query_runs_with_its_variables(typed):
    assert "3 rows (" in typed(".query open_leases", ENTER, "\x04")
    assert "0 rows (" in typed(".query open_leases run_id=another since=24h", ENTER, "\x04")
    assert "error: since 'soon' is not a date" in typed(".query open_leases since=soon", ENTER, "\x04")


def test_what_is_no_command_is_said_with_the_nearest(typed):
    lines = (".table", ".schema", ".schema leases", ".query open_lease", ".x")
    shown = typed(*(line + ENTER for line in lines), "\x04")
    assert "error: there is no command .table; did you mean .tables?" in shown
    assert "error: .schema needs a name after it" in shown
    assert "error: the ledger has no view 'leases'" in shown
    assert "did you mean open_leases?" in shown
    assert "error: there is no command .x; see .help" in shown


def test_a_server_has_no_named_queries(views, capsys):
    def unreachable(text: str) -> Result:
        raise QueryError("cannot reach it")

    shell = Shell(views, unreachable)
    assert shell.handle(".query open_leases")
    assert "error: named queries run on a ledger's folder" in capsys.readouterr().out
    assert shell.handle("from lease;")
    assert "error: cannot reach it" in capsys.readouterr().out


def test_what_was_typed_is_remembered_for_the_next_session(typed, state):
    typed("select 5 as five;", ENTER, "\x04")
    assert "+select 5 as five;" in state.read_text(encoding="utf-8")
    assert state.stat().st_mode & 0o077 == 0
    up = "\x1b[A"
    assert "│ 5 " in typed(up, ENTER, "\x04")


def test_a_state_folder_that_cannot_be_made_costs_only_the_history(typed, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert type(history()).__name__ == "InMemoryHistory"
    assert "│ 5 " in typed("select 5 as five;", ENTER, "\x04")


@pytest.mark.parametrize(
    ("before", "offered", "not_offered"),
    [
        ("select kv_bud", {"kv_budget_bytes", "kv_budget_min_bytes"}, {"lease"}),
        ("sel", {"select"}, {"qualify"}),
        ("select 1 from dev", {"device", "device_slice", "device_id"}, {"lease"}),
        ("select lease.clo", {"lease.closed_at", "lease.closed_by"}, {"lease.granted_at", "closed_at"}),
        (".s", {".schema"}, {".tables", "select"}),
        (".schema dev", {"device", "device_slice"}, {"device_id"}),
        (".query open", {"open_leases"}, {"lease"}),
        ("", set(), {"select"}),
    ],
)
def test_completion_offers_what_can_stand_there(views, before, offered, not_offered):
    completer = SqlCompleter(Shell(views, lambda text: Result([], [], [], truncated=False)))
    found = {each.text for each in completer.get_completions(Document(before), CompleteEvent())}
    assert offered <= found
    assert not not_offered & found


@pytest.mark.parametrize(
    ("text", "split", "done"),
    [
        ("", [], True),
        (";", [], True),
        ("-- nothing;", [], True),
        ("select 1", ["select 1"], False),
        ("select 1; -- why", ["select 1;"], True),
        ("select 'a;", ["select 'a;"], False),
        ("select ';' as \"b;\", $$;$$; select 2", ["select ';' as \"b;\", $$;$$;", "select 2"], False),
        ("/* a; */ select 'ä;ö';select 2;", ["/* a; */ select 'ä;ö';", "select 2;"], True),
        (".help", [".help"], True),
    ],
)
def test_statements_end_at_semicolons_that_are_no_text(text, split, done):
    assert statements(text) == split
    assert complete(text) == done


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_splitting_changes_nothing_but_space_and_comments(text):
    rest = text
    for part in statements(text):
        assert part.strip() == part != ""
        rest = rest[rest.index(part) + len(part) :]
    assert complete(text) or statements(text)


@contextmanager
def terminal(root: Path, environment: dict[str, str]) -> Iterator[int]:
    """`rose sql` on a terminal of its own, where Ctrl-C is a signal; yields our end of it."""
    command = [sys.executable, "-m", "rose.cli", "sql", "--ledger", str(root), "--timeout", "15"]
    process, keys = pty.fork()
    if process == 0:
        os.execve(command[0], command, {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **environment})
    ended = False
    try:
        yield keys
        for _ in range(300):
            done, status = os.waitpid(process, os.WNOHANG)
            if ended := done == process:
                break
            time.sleep(0.1)
        assert ended, "the shell did not leave"
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        if not ended:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        os.close(keys)


def read_until(keys: int, pattern: str) -> str:
    """What appears on the terminal until it matches, with what steers the terminal or without."""
    seen = ""
    deadline = time.monotonic() + 60
    while not any(re.search(pattern, text, re.DOTALL) for text in (seen, plain(seen))):
        ready, _, _ = select.select([keys], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"no {pattern!r} in {seen!r}"
        try:
            seen += os.read(keys, 65536).decode(errors="replace")
        except OSError as error:
            raise AssertionError(f"the shell ended before {pattern!r}: {seen!r}") from error
    return plain(seen)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.long
def test_on_a_real_terminal_ctrl_c_cancels_the_query_and_tab_completes(root, tmp_path):
    endless = "select count(*) from range(100000000000) where range % 3 = 1;"
    with terminal(root, {"XDG_STATE_HOME": str(tmp_path)}) as keys:
        assert str(root) in read_until(keys, "rose>")
        os.write(keys, f"{endless}\r".encode())
        # The prompt gives the terminal back; then the query begins.
        read_until(keys, r"\x1b\[\?2004l")
        time.sleep(0.5)
        os.write(keys, b"\x03")
        read_until(keys, "cancelled.*rose>")
        os.write(keys, b"select max(lease_i")
        read_until(keys, "lease_id")
        os.write(keys, b"\t")
        # The terminal is only sent what changed.
        read_until(keys, "d")
        os.write(keys, b") as newest from lease;\r")
        assert "l2" in read_until(keys, "1 rows .*rose>")
        os.write(keys, b"\x04")
