from __future__ import annotations

import json
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.access import log
from dashboard.access.log import AccessLog
from dashboard.access.people import Person


def person(subject: str = "1", email: str | None = "a@example.com") -> Person:
    return Person(subject=subject, email=email, roles=frozenset({"infra", "finance"}))


def write(to: AccessLog, **more) -> None:
    to.write(**{"person": person(), "action": "page", "page": "Bill", "ledger": "/l", "query": {}} | more)


@pytest.fixture
def opened(tmp_path):
    access_log = AccessLog(tmp_path)
    yield access_log
    access_log.close()


def test_a_line_says_who_looked_at_what_and_when(opened):
    write(opened, query={"run": "r1"}, detail="x.csv")
    line = json.loads(opened.path.read_text())
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "person": "a@example.com",
        "subject": "1",
        "roles": ["finance", "infra"],
        "action": "page",
        "page": "Bill",
        "ledger": "/l",
        "query": {"run": "r1"},
        "detail": "x.csv",
    }
    assert opened.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.long
@given(text=st.text(max_size=300))
def test_whatever_somebody_is_called_it_stays_one_line_of_plain_ascii(tmp_path_factory, text):
    access_log = AccessLog(tmp_path_factory.mktemp("log"))
    write(access_log, person=person(text, None), query={text: text, "run": text}, detail=text)
    access_log.close()
    content = access_log.path.read_bytes()
    assert content.count(b"\n") == 1
    assert content.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in content[:-1])
    assert json.loads(content)["query"]["run"].startswith(text[:200])


def test_values_of_a_query_that_no_page_knows_are_not_kept():
    assert log.shown({"run": "r", "token": "hunter2", "code": "x"}) == {
        "run": "r",
        "token": "(not logged)",
        "code": "(not logged)",
    }
    assert len(log.shown({str(n): "" for n in range(1000)})) == 30


def test_it_is_turned_over_and_old_files_are_private_too(opened):
    opened._handler.maxBytes = 1000
    for n in range(100):
        write(opened, detail=str(n))
    files = sorted(opened.path.parent.iterdir())
    assert len(files) == 11
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert all(json.loads(line) for file in files for line in file.read_text().splitlines())


def test_threads_do_not_mix_their_lines(opened):
    threads = [Thread(target=lambda: [write(opened) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([json.loads(line) for line in opened.path.read_text().splitlines()]) == 400


def test_what_cannot_be_written_is_an_error(tmp_path):
    access_log = AccessLog(tmp_path)
    access_log._handler.stream.close()
    (tmp_path / "full").symlink_to("/dev/full")
    access_log._handler.baseFilename = str(tmp_path / "full")
    access_log._handler.stream = None
    with pytest.raises(OSError, match="No space"):
        write(access_log)
