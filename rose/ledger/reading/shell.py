"""The shell that `rose sql` opens without a query: statements on the bounded query, and a few commands about them.

`Shell` says what a line does and needs no terminal; `interact` gives it one, with history, completion and colours.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import Output

from rose.ledger import database
from rose.ledger.commands.common import print_table
from rose.ledger.layout import LedgerError
from rose.ledger.reading import dictionary, named
from rose.ledger.reading.query import Result
from rose.terminal import echo

HELP = """\
A statement is one SELECT and ends with a semicolon; it may span lines. Ctrl-C cancels, Ctrl-D leaves.
.tables               the views
.schema VIEW          the columns of a view: type, meaning, unit
.queries              the named queries
.query NAME [V=TEXT]  run a named query, such as: .query harvest_share_by_day since=7d
.help                 this text
.quit                 leave; so do exit, quit and \\q"""
_COMMANDS = (".help", ".queries", ".query", ".quit", ".schema", ".tables")
#: What other shells call them. `\d` with a name after it is .schema.
_SYNONYMS = {
    **dict.fromkeys(("exit", "quit", "\\q", ".exit", ".q"), ".quit"),
    **dict.fromkeys(("help", "\\?", "\\h", ".h"), ".help"),
    **dict.fromkeys(("\\d", "\\dt", "\\dv", ".views", "show tables", "show views"), ".tables"),
}
#: Keywords that DuckDB does not reserve and that a SELECT has use for.
_UNRESERVED = ["exclude", "filter", "over", "partition", "replace", "values"]
_KEYWORDS = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
_WORD = re.compile(r"[\w.]+$")


@dataclass(slots=True)
class Shell:
    """What the shell works on. `run` gives the rows of a statement, `run_named` those of a named query, if it can.

    Both raise LedgerError for what cannot be done.
    """

    views: list[dictionary.View]
    run: Callable[[str], Result]
    run_named: Callable[[named.NamedQuery, dict[str, str]], Result] | None = None
    show: Callable[[str], None] = lambda text: echo(*text.split("\n"))
    raw: bool = False
    words: list[str] = field(init=False)

    def __post_init__(self) -> None:
        with database.connect() as connection:
            keywords = {name for (name,) in connection.execute(_KEYWORDS).fetchall()}
        columns = {column.name for view in self.views for column in view.columns}
        self.words = sorted({*columns, *(view.name for view in self.views), *keywords, *_UNRESERVED})

    def handle(self, text: str) -> bool:
        """Do what was entered and show what came of it, errors too; False if the user wants to leave."""
        try:
            if (command := _command(text)) is not None:
                return self._command(*command)
            for statement in statements(text):
                if (command := _command(statement)) is not None:
                    return self._command(*command)
                self._print(lambda statement=statement: self.run(statement))  # type: ignore[misc]
        except LedgerError as error:
            self.show(f"error: {error}")
        except KeyboardInterrupt:
            self.show("cancelled")
        return True

    def _command(self, command: str, *arguments: str) -> bool:
        if command == ".help":
            self.show(HELP)
        elif command == ".tables":
            print_table(["view", "about"], [(view.name, view.about) for view in self.views])
        elif command == ".schema" and len(arguments) == 1:
            view = dictionary.one(self.views, arguments[0])
            self.show(view.about)
            print_table(
                ["column", "type", "about"], [(column.name, column.type, column.about) for column in view.columns]
            )
        elif command == ".queries":
            print_table(["query", "question"], [(name, named.load(name).question) for name in named.names()])
        elif command == ".query" and arguments:
            self._named(*arguments)
        elif command == ".quit":
            return False
        elif command in _COMMANDS:
            raise LedgerError(f"{command} needs a name after it; .help shows how")
        else:
            near = difflib.get_close_matches(command, _COMMANDS, n=1)
            raise LedgerError(
                f"there is no command {command}; " + (f"did you mean {near[0]}?" if near else "see .help")
            )
        return True

    def _named(self, name: str, *given: str) -> None:
        run_named = self.run_named
        if run_named is None:
            raise LedgerError("named queries run on a ledger's folder: open this shell with --ledger, not --server")
        query = named.load(name)
        self._print(lambda: run_named(query, named.assignments(given)))

    def _print(self, run: Callable[[], Result]) -> None:
        began = time.monotonic()
        result = run()
        took_ms = (time.monotonic() - began) * 1e3
        print_table(result.columns, result.rows, raw=self.raw)
        shown = f"the first {len(result.rows)} rows, there are more" if result.truncated else f"{len(result.rows)} rows"
        self.show(f"{shown} ({took_ms:.0f} ms)")


def _command(text: str) -> list[str] | None:
    """The words of a command, by its name here and without a semicolon after them; None for a statement."""
    words = text.strip().removesuffix(";").split()
    if known := _SYNONYMS.get(" ".join(words).lower()):
        return [known]
    if not words or words[0][0] not in ".\\":
        return None
    return [".schema" if words[0] in ("\\d", "\\d+") and words[1:] else words[0], *words[1:]]


def statements(text: str) -> list[str]:
    """The statements in `text`, without what only comments hold; the last may lack its semicolon."""
    content = text.encode()
    starts = _tokens(text)
    ends = [start + 1 for start in starts if content[start : start + 1] == b";"]
    ended = []
    for begin, end in zip([0, *ends], [*ends, len(content)], strict=True):
        if any(begin <= start < end and start + 1 not in ends for start in starts):
            ended.append(content[begin:end].decode().strip())
    # What is space to Python may be code to DuckDB.
    return [statement for statement in ended if statement]


def complete(text: str) -> bool:
    """Whether Enter runs `text`: a command, or nothing, or statements of which the last has its semicolon."""
    if _command(text) is not None or not statements(text):
        return True
    last = _tokens(text)[-1]
    return text.encode()[last : last + 1] == b";"


def _tokens(text: str) -> list[int]:
    """Where each token but comments begins, in bytes of UTF-8."""
    return [start for start, kind in duckdb.tokenize(text) if kind is not duckdb.token_type.comment]


class SqlCompleter(Completer):
    """Views, columns and keywords; the columns of a view after its name and a dot; names after a command."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What could stand at the cursor instead of the word before it."""
        before = document.text_before_cursor.lstrip()
        match = _WORD.search(before)
        word = match[0] if match else ""
        for candidate in self._candidates(before, word):
            if candidate.lower().startswith(word.lower()) and candidate != word:
                yield Completion(candidate, start_position=-len(word))

    def _candidates(self, before: str, word: str) -> Iterator[str]:
        command, space, _ = before.partition(" ")
        if command == ".schema" and space:
            yield from (view.name for view in self._shell.views)
        elif command == ".query" and space:
            yield from named.names()
        elif before.startswith("."):
            yield from _COMMANDS
        elif "." in word:
            for view in self._shell.views:
                if view.name == word.partition(".")[0].lower():
                    yield from (f"{view.name}.{column.name}" for column in view.columns)
        elif word:
            yield from self._shell.words


def history() -> History:
    """The user's earlier statements, in the state folder; only of this session where that cannot be written."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rose"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "sql_history"
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def interact(shell: Shell, greeting: str, *, keys: Input | None = None, screen: Output | None = None) -> None:
    """Prompt until the user leaves. `keys` and `screen` stand in for the terminal."""
    session: PromptSession[str] = PromptSession(
        lexer=PygmentsLexer.from_filename("statement.sql"),
        completer=SqlCompleter(shell),
        complete_while_typing=True,
        history=history(),
        multiline=Condition(lambda: not complete(session.default_buffer.text)),
        prompt_continuation="  ... ",
        input=keys,
        output=screen,
    )
    shell.show(greeting)
    while True:
        try:
            text = session.prompt(HTML("<b>rose&gt;</b> "))
            if text.strip() and not shell.handle(text.strip()):
                return
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
