import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from rose.ledger.address import OpenAddressError
from rose.ledger.files.layout import LedgerError
from rose.pricing.api import app
from rose.pricing.api.questions import CostQuery, named
from rose.private_files import SecretError
from tests.pricing.api.conftest import HOUR, Serve, Served
from tests.pricing.closing.conftest import BILL_NANO, late_slice, write

TOKEN = "0123456789abcdef"


def test_beyond_loopback_a_token_is_needed(fleet_kept: Path) -> None:
    with pytest.raises(OpenAddressError, match=r"0\.0\.0\.0 can be reached from other machines: give a token"):
        with app.serve(named([str(fleet_kept)], None), "0.0.0.0", 0):
            pass
    with pytest.raises(SecretError, match="has 5 characters and needs 16"):
        with app.serve(named([str(fleet_kept)], None), "0.0.0.0", 0, token="short"):
            pass


def test_only_who_sends_the_token_is_answered(fleet_kept: Path, serve: Serve) -> None:
    served = serve(fleet_kept, token=TOKEN)
    for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer é"}):
        for path in ("/cost", "/metrics", "/openapi.json", "/nowhere"):
            answer = served.get(path, headers=headers)
            assert (answer.status, answer.json["code"]) == (401, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
    assert served.get("/cost", headers={"Authorization": f"Bearer {TOKEN}"}, period=HOUR).status == 200
    # What the Host header says is no path.
    assert served.get("/cost", headers={"Host": "localhost/healthz?"}).status in (400, 401)
    # Whoever watches over the process has none.
    assert served.get("/healthz").status == 200


def test_a_page_whose_name_was_resolved_to_this_machine_is_refused(fleet_kept: Path, serve: Serve) -> None:
    served = serve(fleet_kept)
    for host in ("evil.example", "evil.example:80", "10.0.0.1", "127.0.0.1.evil.example", "127.0.0.1/x"):
        assert served.get("/trust", headers={"Host": host}).status == 403, host
    for host in ("localhost", "127.0.0.1:1", "[::1]:9470"):
        assert served.get("/trust", headers={"Host": host}).status == 200, host
        assert served.get("/trust", headers={"Host": host, "Origin": f"http://{host}"}).status == 200, host
        assert served.get("/trust", headers={"Host": host, "Origin": "http://evil.example"}).status == 403, host


def test_ledgers_are_named_once_and_must_be_there(fleet_kept: Path, tmp_path: Path) -> None:
    assert [ledger.name for ledger in named([str(fleet_kept), f"two={fleet_kept}"], None)] == ["ledger", "two"]
    with pytest.raises(LedgerError, match="two ledgers are called 'ledger'"):
        named([str(fleet_kept), str(fleet_kept)], None)
    with pytest.raises(LedgerError, match="is not a ledger"):
        named([str(tmp_path / "nowhere")], None)


def test_only_reading_of_known_paths_is_answered(quiet_fleet: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = quiet_fleet.get("/cost", method=method)
        assert (answer.status, answer.json) == (405, {"code": 405, "message": "only GET is answered"})
    answer = quiet_fleet.get("/model/cost")
    assert answer.status == 404
    assert "/cost, /saved, /forecast, /report, /trust, /metrics" in answer.json["message"]


def test_the_description_names_every_path_and_parameter(quiet_fleet: Served) -> None:
    described = quiet_fleet.get("/openapi.json").json
    assert described["openapi"] == "3.1.0"
    for path, item in described["paths"].items():
        assert item["get"]["security"] == [{"HTTPBearer": []}]
        for parameter in item["get"].get("parameters", ()):
            Draft202012Validator.check_schema(parameter["schema"])
            assert parameter["description"], path
    assert {one["name"] for one in described["paths"]["/cost"]["get"]["parameters"]} == set(CostQuery.model_fields)


def test_each_request_is_a_line_without_what_may_be_secret(
    quiet_fleet: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    quiet_fleet.get("/saved", token="SECRET", period=HOUR)
    quiet_fleet.get("/cost%0Aforged", period=HOUR)
    first, second = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"\S+Z \S+ GET /saved 400 \S+ ms", first)
    assert re.fullmatch(r"\S+Z \S+ GET /cost%0Aforged 404 \S+ ms", second)


def test_a_ledger_that_does_not_verify_has_no_figures(fleet: Path, serve: Serve) -> None:
    (fleet / "live" / "test" / "000000" / "foreign").write_text("")
    served = serve(fleet)
    for path in ("/cost", "/saved"):
        answer = served.get(path, period="2026-06-01")
        assert answer.status == 503
        assert "does not verify, so its figures cannot be trusted" in answer.json["message"]
    trust = served.get("/trust").data
    assert trust["sound"] is False
    assert trust["problem_count"] == len(trust["problems"]) > 0
    assert "foreign" in " ".join(trust["problems"])


def test_without_prices_nothing_is_priced(fleet_kept: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK", raising=False)
    answer = serve(fleet_kept, price_book=None).get("/cost", period=HOUR)
    assert answer.status == 503
    assert "no price book" in answer.json["message"]


def test_new_events_are_in_the_next_answer(fleet: Path, serve: Serve) -> None:
    served = serve(fleet)

    def idle_nano() -> int:
        lines = served.get("/cost", period=HOUR, by="bucket").data["lines"]
        costs = {line["bucket"]: line["cost_nano"] for line in lines}
        assert sum(costs.values()) == BILL_NANO
        return int(costs["idle"])

    assert idle_nano() == 600_000_000
    write(fleet, [late_slice()], "late")
    assert idle_nano() == 900_000_000


def test_requests_at_once_have_one_answer(fleet_kept: Path, serve: Serve) -> None:
    served = serve(fleet_kept)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: served.get("/cost", period=HOUR), range(4)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1


def test_it_listens_while_the_block_runs(quiet_folder: Path) -> None:
    ledgers = named([str(quiet_folder / "ledger")], None)
    with app.serve(ledgers, "127.0.0.1", 0) as url:
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as response:
            assert json.load(response) == {"code": 200}
        port = int(url.rpartition(":")[2])
        with (
            pytest.raises(LedgerError, match=f"cannot listen on 127.0.0.1:{port}"),
            app.serve(ledgers, "127.0.0.1", port),
        ):
            pass
