from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from rose.ledger.address import OpenAddressError
from rose.ledger.layout import LedgerError
from rose.pricing.api import server
from rose.pricing.api.ledgers import named
from rose.pricing.api.parameters import VIEWS, RequestError
from rose.pricing.api.work import Limits, Work
from rose.secret_file import SecretError
from tests.pricing.api.conftest import HOUR, Serve, Served
from tests.pricing.closing.conftest import BILL_NANO, begun, fleet_events, late_slice, write

TOKEN = "0123456789abcdef"


def test_beyond_loopback_a_token_is_needed(fleet: Path) -> None:
    with pytest.raises(OpenAddressError, match=r"0\.0\.0\.0 can be reached from other machines: give a token"):
        with server.serve(named([str(fleet)], None), "0.0.0.0", 0):
            pass
    with pytest.raises(SecretError, match="has 5 characters and needs 16"):
        with server.serve(named([str(fleet)], None), "0.0.0.0", 0, token="short"):
            pass


def test_only_who_sends_the_token_is_answered(fleet: Path, serve: Serve) -> None:
    served = serve(fleet, token=TOKEN, host="0.0.0.0")
    for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer é"}):
        for path in ("/allocation", "/metrics", "/openapi.json", "/nowhere"):
            answer = served.get(path, headers=headers)
            assert (answer.status, answer.json["code"]) == (401, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
    assert served.get("/allocation", headers={"Authorization": f"Bearer {TOKEN}"}, window=HOUR).status == 200
    # What the Host header says is no path.
    assert served.get("/allocation", headers={"Host": "localhost/healthz?"}).status in (400, 401)
    # Whoever watches over the process has none.
    assert served.get("/healthz").data == "ok"


def test_a_page_whose_name_was_resolved_to_this_machine_is_refused(fleet: Path, serve: Serve) -> None:
    served = serve(fleet)
    for host in ("evil.example", "evil.example:80", "10.0.0.1", "127.0.0.1.evil.example", "127.0.0.1/x"):
        assert served.get("/trust", headers={"Host": host}).status == 403, host
    for host in ("localhost", "127.0.0.1:1", "[::1]:9470"):
        assert served.get("/trust", headers={"Host": host}).status == 200, host
        assert served.get("/trust", headers={"Host": host, "Origin": f"http://{host}"}).status == 200, host
        assert served.get("/trust", headers={"Host": host, "Origin": "http://evil.example"}).status == 403, host


def test_an_address_that_is_taken_is_refused(fleet: Path, serve: Serve) -> None:
    port = int(serve(fleet).url.rpartition(":")[2])
    with pytest.raises(LedgerError, match=f"cannot listen on 127.0.0.1:{port}"):
        with server.serve(named([str(fleet)], None), "127.0.0.1", port):
            pass


def test_ledgers_are_named_once_and_must_be_there(fleet: Path, tmp_path: Path) -> None:
    assert [ledger.name for ledger in named([str(fleet), f"two={fleet}"], None)] == ["ledger", "two"]
    with pytest.raises(LedgerError, match="two ledgers are called 'ledger'"):
        named([str(fleet), str(fleet)], None)
    with pytest.raises(LedgerError, match="is not a ledger"):
        named([str(tmp_path / "nowhere")], None)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_taken(asked_fleet: Served, method: str) -> None:
    answer = asked_fleet.get("/allocation", method=method)
    assert (answer.status, answer.json) == (405, {"code": 405, "message": "only GET is answered"})


def test_an_unknown_path_names_those_there_are(asked_fleet: Served) -> None:
    answer = asked_fleet.get("/model/allocation")
    assert answer.status == 404
    assert "there is /allocation, /summary, /runs, /trust, /metrics" in answer.json["message"]


def test_a_parameter_that_is_given_twice_is_refused(asked_fleet: Served) -> None:
    answer = asked_fleet.get("/trust?ledger=a&ledger=b&")
    assert (answer.status, answer.json["message"]) == (400, "parameter ledger is given twice; give it once")


def test_the_description_holds_of_real_answers(fleet: Path, serve: Serve) -> None:
    served = serve(fleet)
    described = served.get("/openapi.json").json
    assert described["openapi"] == "3.1.0"
    for path, item in described["paths"].items():
        operation = item["get"]
        for parameter in operation.get("parameters", ()):
            Draft202012Validator.check_schema(parameter["schema"])
            assert parameter["in"] == "query"
            assert parameter["description"]
        content = operation["responses"]["200"]["content"]
        assert operation["security"] == [{"HTTPBearer": []}]
        if path != "/metrics":
            # References are to the components.
            schema = content["application/json"]["schema"] | {"components": described["components"]}
            Draft202012Validator.check_schema(schema)
            for view in VIEWS if path == "/allocation" else ("",):
                answer = served.get(path, **({"costBasis": view, "window": "2026-06-01"} if view else {}))
                Draft202012Validator(schema).validate(answer.json)
                if view:
                    names = described["components"]["schemas"]["Allocation"]["properties"]
                    assert all(line.keys() <= names.keys() for one in answer.data for line in one.values())
    error = described["components"]["schemas"]["Error"]
    Draft202012Validator(error).validate(served.get("/allocation", window="never").json)
    parameters = {one["name"] for one in described["paths"]["/allocation"]["get"]["parameters"]}
    assert parameters == {
        "window",
        "tz",
        "provenance",
        "ledger",
        "aggregate",
        "costBasis",
        "accumulate",
        "step",
        "filter",
    }


def test_each_request_is_a_line_without_what_may_be_secret(
    fleet: Path, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    served = serve(fleet)
    served.get("/allocation", window=HOUR, filter='team:"a\nb"')
    served.get("/summary", token="SECRET", window=HOUR)
    served.get("/runs%0Aforged", window=HOUR)
    # A line is written once its answer is out: perhaps after that of the next one, and it may be read in two parts.
    text, deadline_s = "", time.monotonic() + 30
    while text.count("\n") < 3 and time.monotonic() < deadline_s:
        text += capfd.readouterr().err
        time.sleep(0.01)
    assert text.count("\n") == 3
    assert re.search(
        r"^\S+Z 127\.0\.0\.1 GET /allocation\?window=2026-06-01T00&filter=team:%22a%0Ab%22 400 \S+ ms$", text, re.M
    )
    assert re.search(r"^\S+ 127\.0\.0\.1 GET /summary\?token=\.\.\.&window=2026-06-01T00 400", text, re.M)
    assert re.search(r"^\S+ 127\.0\.0\.1 GET /runs%0Aforged\?", text, re.M)
    assert "SECRET" not in text


def test_a_ledger_that_does_not_verify_has_no_figures_but_marked_ones(fleet: Path, serve: Serve) -> None:
    (fleet / "live" / "test" / "000000" / "foreign").write_text("")
    served = serve(fleet)
    for path in ("/allocation", "/summary", "/runs"):
        answer = served.get(path, window=HOUR)
        assert answer.status == 503
        assert "ledger ledger does not verify, so its figures cannot be trusted" in answer.json["message"]
    marked = serve(fleet, allow_unverified=True).get("/allocation", window=HOUR)
    assert marked.json["sets"][0]["verified"] is False


def test_without_prices_nothing_is_priced(fleet: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK", raising=False)
    answer = serve(fleet, price_book=None).get("/allocation", window=HOUR)
    assert answer.status == 503
    assert "there is no price book" in answer.json["message"]


@pytest.mark.long
def test_new_events_are_in_the_next_answer(fleet: Path, serve: Serve) -> None:
    served = serve(fleet)

    def idle_nano() -> int:
        (allocations,) = served.get("/allocation", window=HOUR, aggregate="bucket").data
        assert sum(line["total_nano"] for line in allocations.values()) == BILL_NANO
        return int(allocations["idle"]["total_nano"])

    assert idle_nano() == 600_000_000
    write(fleet, [late_slice()], "late")
    assert idle_nano() == 900_000_000


def test_requests_at_once_have_one_answer(fleet: Path, serve: Serve) -> None:
    served = serve(fleet, limits=Limits(threads=1, queue=0, timeout_s=250))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: served.get("/allocation", window=HOUR), range(8)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1


def test_work_beyond_the_queue_is_refused_and_slow_work_is_not_waited_for() -> None:
    go_on = threading.Event()

    async def work() -> None:
        working = Work(Limits(threads=1, queue=1, timeout_s=0.05))

        def slow() -> str:
            go_on.wait(60)
            return "made"

        for key in ("one", "two"):
            with pytest.raises(RequestError, match=r"takes longer than 0\.05 s") as slow_error:
                await working.answer(key, slow)
            assert slow_error.value.status == 504
        with pytest.raises(RequestError, match="2 requests are being answered or wait") as busy:
            await working.answer("three", slow)
        assert busy.value.status == 429
        go_on.set()
        while True:
            # What took too long goes on, and is there for who asks again.
            try:
                assert await working.answer("two", lambda: "made anew") == "made"
                break
            except RequestError:
                continue
        assert await working.answer("three", lambda: "free again") == "free again"
        working.close()

    asyncio.run(work())


def test_work_that_fails_is_done_again() -> None:
    async def work() -> None:
        working = Work(Limits())
        with pytest.raises(ZeroDivisionError):
            await working.answer("key", lambda: 1 // 0)
        assert await working.answer("key", lambda: 2) == 2
        assert await working.answer("key", lambda: 3) == 2
        working.close()

    asyncio.run(work())


def test_a_slow_request_is_answered_with_504_and_a_full_queue_with_429(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger's own lock makes it slow: whoever holds it keeps pricing waiting."""
    from rose.ledger import layout

    root = write(tmp_path / "ledger", [*begun(), *fleet_events()[2:]])
    # A file there makes pricing keep its sums, under a lock.
    (root / "pricing.duckdb").touch()
    (root / "locks").mkdir(exist_ok=True)
    served = serve(root, limits=Limits(threads=1, queue=0, timeout_s=0.2))
    with layout.locked(root / "locks" / "pricing.lock"):
        slow = served.get("/allocation", window=HOUR)
        assert (slow.status, slow.json["code"], slow.headers["retry-after"]) == (504, 504, "5")
        busy = served.get("/allocation", window=HOUR, aggregate="run")
        assert (busy.status, busy.headers["retry-after"]) == (429, "5")
        # Nobody waits for the ledger to say that the server is alive.
        assert served.get("/healthz").status == 200
