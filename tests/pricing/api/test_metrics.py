from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rose.ledger import verify
from rose.pricing.api import metrics
from rose.pricing.api.ledgers import named
from rose.pricing.closing import period
from rose.pricing.watch import budget
from tests.pricing.api.conftest import NOW_NS, Serve
from tests.pricing.closing.conftest import BILL_NANO, S, begun, ended, fleet_events, slice_, write
from tests.pricing.conftest import sample_events

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rose-alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "rose-cost.json"
#: What every request for a figure of this ledger has.
LIVE = {"ledger": "ledger", "provenance": "live"}


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == set(metrics.METRICS)
    for name, family in families.items():
        assert family.type == "gauge"
        assert family.documentation == metrics.METRICS[name][1]
        assert all(sample.labels.keys() == set(metrics.METRICS[name][0]) for sample in family.samples)
    return {name: [(sample.labels, sample.value) for sample in family.samples] for name, family in families.items()}


def value(found: Mapping[str, Any], metric: str, **labels: str) -> float:
    ((_, number),) = [one for one in found[metric] if labels.items() <= one[0].items()]
    return number


def test_a_scrape_has_the_figures_of_the_month(fleet: Path, serve: Serve) -> None:
    served = serve(fleet, price_book="example")
    answer = served.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = samples(answer.text)
    figures = served.get("/summary", window="month").data[0]["figures"]
    for metric, name in (
        ("rose_cost_bill_dollars", "bill"),
        ("rose_cost_rollout_dollars", "rollout_cost"),
        ("rose_cost_per_accepted_dollars", "cost_per_accepted"),
    ):
        assert value(found, metric, **LIVE) == figures[name]["value"] / 1e9
    for kind in ("cash_saved_if_there_anyway", "cash_saved_if_not", "capacity_avoided"):
        known = figures[kind]["value"]
        assert [one for labels, one in found["rose_saved_dollars"] if labels["kind"] == kind] == (
            [] if known is None else [known / 1e9]
        )
    for view in ("amortized", "fully loaded"):
        cost = sum(one for labels, one in found["rose_cost_dollars"] if labels["view"] == view)
        assert cost == pytest.approx(figures["bill"]["value"] / 1e9, abs=1e-9)
    (marginal,) = [one for labels, one in found["rose_cost_dollars"] if labels["view"] == "marginal"]
    assert marginal == figures["borrowing_added"]["value"] / 1e9
    run = {**LIVE, "team": "research", "run": "run"}
    assert value(found, "rose_borrowed_device_seconds", **run) == 900
    assert value(found, "rose_rollout_tokens", **run) == 300
    assert value(found, "rose_answers_judged", **run) == 2
    assert value(found, "rose_answers_accepted", **run) == 1
    # No audit, no correct answers: which is not that there were none.
    assert value(found, "rose_answers_audited", **run) == 0
    assert found["rose_answers_correct"] == []
    assert found["rose_cost_per_correct_dollars"] == found["rose_slo_attainment_ratio"] == []
    assert value(found, "rose_cost_up", ledger="ledger") == value(found, "rose_ledger_sound", ledger="ledger") == 1
    assert value(found, "rose_ledger_problems", ledger="ledger") == 0
    assert value(found, "rose_ledger_verified_timestamp_seconds", ledger="ledger") > 1.7e9
    assert value(found, "rose_cost_example_prices", **LIVE) == 1
    assert value(found, "rose_cost_merged_runs", **LIVE) == 0


def test_beyond_the_dearest_teams_and_runs_are_one_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "RUNS_MAX", 2)
    root = tmp_path / "ledger"
    for number in range(4):
        tags = json.dumps({"team": f'team "{number}"\n'})
        made = [*begun(tags), slice_(0, rollout=900 * (number + 1)), *ended(3600)]
        write_run(root, made, f"r{number}")
    found = samples(metrics.text(named([str(root)], "example"), NOW_NS).decode())
    seconds = {labels["run"]: one for labels, one in found["rose_rollout_device_seconds"]}
    teams = {labels["run"]: labels["team"] for labels, _ in found["rose_rollout_device_seconds"]}
    assert len(seconds) <= 3
    assert teams[metrics.OTHER] == metrics.OTHER
    assert sum(seconds.values()) == 900 * 10
    # Each run has a team, and but for one that worked for the whole hour time that is of none.
    assert value(found, "rose_cost_merged_runs", **LIVE) == 7 - 2
    amortized = [one for labels, one in found["rose_cost_dollars"] if labels["view"] == "amortized"]
    assert sum(amortized) == pytest.approx(value(found, "rose_cost_bill_dollars", **LIVE))
    assert {team for run, team in teams.items() if run != metrics.OTHER} <= {f'team "{n}"\n' for n in range(4)}


def test_live_and_simulated_have_series_of_their_own(fleet: Path, serve: Serve) -> None:
    write(fleet, [*begun('{"team": "nobody"}'), *ended(3600)], "other", "simulated")
    found = samples(serve(fleet).get("/metrics").text)
    bills = {labels["provenance"]: one for labels, one in found["rose_cost_bill_dollars"]}
    assert bills == {"live": BILL_NANO / 1e9, "simulated": 3.6}


def test_a_ledger_that_does_not_verify_has_no_figures(fleet: Path, tmp_path: Path, serve: Serve) -> None:
    sound = write(tmp_path / "sound", fleet_events())
    (fleet / "live" / "test" / "000000" / "foreign").write_text("")
    found = samples(serve(fleet, sound).get("/metrics").text)
    assert {labels["ledger"]: one for labels, one in found["rose_cost_up"]} == {"ledger": 0, "sound": 1}
    assert value(found, "rose_ledger_sound", ledger="ledger") == 0
    assert value(found, "rose_ledger_problems", ledger="ledger") > 0
    assert {labels["ledger"] for labels, _ in found["rose_cost_dollars"]} == {"sound"}


def test_a_month_in_which_nothing_ran_has_no_figures(fleet: Path, serve: Serve) -> None:
    found = samples(serve(fleet, now_ns=NOW_NS + 60 * 86_400 * S).get("/metrics").text)
    assert found["rose_cost_bill_dollars"] == []
    assert value(found, "rose_cost_up", ledger="ledger") == 1


def write_run(root: Path, made: list[Any], run_id: str) -> None:
    from rose.ledger.writer import LedgerWriter

    with LedgerWriter.open(root, run_id, run_id, "live") as ledger:
        for event in made:
            ledger.record(event, durable=False)


def queries() -> list[str]:
    """Every PromQL expression of the dashboard, its variables' too."""
    board = json.loads(DASHBOARD.read_text("utf-8"))
    panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [*panels, *(one["query"] for one in board["templating"]["list"] if one["type"] == "query")]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[dict[str, str], float]]]:
    """A scrape of the sample, verified and with a budget."""
    root = write(tmp_path_factory.mktemp("scraped") / "ledger", sample_events(), provenance="replay")
    budget.set_budget(root, "chat", "1000", period.of_month("2026-06"))
    verify.verify(root)
    return samples(metrics.text(named([str(root)], "example"), NOW_NS).decode())


def test_every_metric_of_the_dashboard_is_in_a_real_scrape(scraped: Mapping[str, Any]) -> None:
    found = scraped
    asked = {name for query in queries() for name in re.findall(r"\brose_\w+", query)}
    assert asked
    for name in asked:
        assert found[name], f"{name} has no sample"
    for query in queries():
        for name, selector in re.findall(r"\b(rose_\w+)\{([^}]*)\}", query):
            labels = re.findall(r"(\w+)\s*=~?", selector)
            assert set(labels) <= set(metrics.METRICS[name][0]), query
        for clause in re.findall(r"\bby \(([^)]*)\)", query):
            known = {label for name in re.findall(r"\brose_\w+", query) for label in metrics.METRICS[name][0]}
            assert {label.strip() for label in clause.split(",")} <= known, query


def test_every_metric_of_the_alerts_is_in_a_real_scrape(scraped: Mapping[str, Any]) -> None:
    found = scraped
    assert value(found, "rose_budget_dollars", ledger="ledger", team="chat") == 1000.0
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys()
        assert rule["expr"].count("(") == rule["expr"].count(")")
        named = re.findall(r"\b(rose_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert named, rule["alert"]
        for name, selector in named:
            assert name in metrics.METRICS, f"{rule['alert']}: {name} is not served"
            assert set(re.findall(r"(\w+)=~?\"", selector)) <= set(metrics.METRICS[name][0]), rule["alert"]
            assert found[name], f"{rule['alert']}: {name} has no sample"


def test_the_dashboard_is_whole() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    assert board["id"] is None
    assert board["uid"]
    assert isinstance(board["schemaVersion"], int)
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    cells = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    used = {name for text in map(json.dumps, board["panels"]) for name in re.findall(r"\$\{?(\w+)", text)}
    assert used - {"__all"} <= variables.keys()
    # Figures of two provenances are never in one panel's sum.
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            for name, selector in re.findall(r"\b(rose_\w+)\{([^}]*)\}", target["expr"]):
                if "provenance" in metrics.METRICS[name][0]:
                    assert 'provenance="$provenance"' in selector, panel["title"]
