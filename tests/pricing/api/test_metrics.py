import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rose.ledger.ledger import Ledger
from rose.pricing import period
from rose.pricing.api import metrics
from rose.pricing.api.questions import named
from rose.pricing.charges.allocation import ROLLOUT_BUCKETS
from rose.pricing.spend.cost import Question, ask
from rose.pricing.watch import budget
from tests.pricing.api.conftest import NOW_NS
from tests.pricing.closing.conftest import S, begun, ended, slice_, write
from tests.pricing.conftest import sample_events

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rose-alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "rose-cost.json"
MONTH = period.of_month("2026-06")
Samples = Mapping[str, list[tuple[dict[str, str], float]]]


def samples(text: str) -> Samples:
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


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with a budget, and a simulated run beside it."""
    root = write(tmp_path_factory.mktemp("scraped") / "ledger", sample_events(), provenance="replay")
    write(root, [*begun('{"team": "nobody"}'), *ended(3600)], "other", "simulated", "other")
    budget.set_budget(Ledger(root), "chat", "1000", MONTH)
    return root


@pytest.fixture(scope="module")
def scraped(root: Path) -> Samples:
    (ledger,) = named([str(root)], "example")
    return samples(metrics.text([ledger], NOW_NS).decode())


def test_a_scrape_has_the_figures_of_the_month(root: Path, scraped: Samples) -> None:
    found, replay = scraped, {"ledger": "ledger", "provenance": "replay"}
    lines = ask(Ledger(root), Question(period=MONTH, by=("pool", "bucket"), provenance="replay"), "example")
    rollout = {line.values[0]: line for line in lines.lines if line.values[1] == "rollout"}
    rollout_nano = sum(line.cost_nano for line in lines.lines if line.values[1] in ROLLOUT_BUCKETS)
    assert value(found, "rose_cost_bill_dollars", **replay) == lines.bill_nano / 1e9
    assert value(found, "rose_cost_rollout_dollars", **replay) == rollout_nano / 1e9
    # Three answers were accepted; a fourth was stale.
    assert value(found, "rose_cost_per_accepted_dollars", **replay) == pytest.approx(rollout_nano / 3 / 1e9)
    for view in ("amortized", "fully loaded"):
        own = {**replay, "view": view}.items()
        costs = [one for labels, one in found["rose_cost_dollars"] if own <= labels.items()]
        assert sum(costs) == pytest.approx(lines.bill_nano / 1e9, abs=1e-9)
    run = {**replay, "run": "run"}
    assert value(found, "rose_borrowed_device_seconds", **run) == rollout["serving"].ns / S
    assert value(found, "rose_rollout_device_seconds", **run) == sum(line.ns for line in rollout.values()) / S
    assert value(found, "rose_answers_accepted", **run) == 3
    assert value(found, "rose_serving_requests", **replay) == 5
    assert value(found, "rose_slo_attainment_ratio", **replay) == 0.8
    kinds = {labels["kind"] for labels, _ in found["rose_saved_dollars"]}
    assert kinds == {"cash_saved_if_there_anyway", "cash_saved_if_not", "capacity_avoided"}
    assert value(found, "rose_cost_up", ledger="ledger") == value(found, "rose_ledger_sound", ledger="ledger") == 1
    assert value(found, "rose_ledger_problems", ledger="ledger") == 0
    assert value(found, "rose_cost_example_prices", **replay) == 1
    # Live and simulated figures have series of their own.
    assert value(found, "rose_cost_bill_dollars", provenance="simulated") > 0


def test_beyond_the_dearest_teams_and_runs_are_one_series(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "RUNS_MAX", 2)
    many = tmp_path / "ledger"
    for number in range(4):
        tags = json.dumps({"team": f'team "{number}"\n'})
        made = [*begun(tags), slice_(0, rollout=900 * (number + 1)), *ended(3600)]
        write(many, made, f"r{number}", run_id=f"r{number}")
    bill_nano = ask(Ledger(many), Question(period=MONTH, by=("team",)), "example").bill_nano
    found = samples(metrics.text(named([str(many)], "example"), NOW_NS).decode())
    seconds = {labels["run"]: one for labels, one in found["rose_rollout_device_seconds"]}
    teams = {labels["run"]: labels["team"] for labels, _ in found["rose_rollout_device_seconds"]}
    assert len(seconds) <= 3
    assert teams[metrics.OTHER] == metrics.OTHER
    assert sum(seconds.values()) == 900 * 10
    amortized = [one for labels, one in found["rose_cost_dollars"] if labels["view"] == "amortized"]
    assert sum(amortized) == pytest.approx(bill_nano / 1e9)
    assert {team for run, team in teams.items() if run != metrics.OTHER} <= {f'team "{n}"\n' for n in range(4)}


def test_a_ledger_that_cannot_be_priced_has_no_figures(fleet: Path) -> None:
    (ledger,) = named([str(fleet)], "example")
    later = samples(metrics.text([ledger], NOW_NS + 60 * 86_400 * S).decode())
    assert later["rose_cost_bill_dollars"] == []
    assert value(later, "rose_cost_up", ledger="ledger") == 1
    (fleet / "live" / "test" / "000000" / "foreign").write_text("")
    found = samples(metrics.text([ledger], NOW_NS).decode())
    assert value(found, "rose_cost_up", ledger="ledger") == value(found, "rose_ledger_sound", ledger="ledger") == 0
    assert value(found, "rose_ledger_problems", ledger="ledger") > 0
    assert found["rose_cost_dollars"] == []


def queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [*panels, *(one["query"] for one in board["templating"]["list"] if one["type"] == "query")]


def test_every_metric_of_the_dashboard_is_in_a_real_scrape(scraped: Samples) -> None:
    asked = {name for query in queries() for name in re.findall(r"\brose_\w+", query)}
    assert asked
    for name in asked:
        assert scraped[name], f"{name} has no sample"
    for query in queries():
        for name, selector in re.findall(r"\b(rose_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)\s*=~?", selector)) <= set(metrics.METRICS[name][0]), query
        for clause in re.findall(r"\bby \(([^)]*)\)", query):
            known = {label for name in re.findall(r"\brose_\w+", query) for label in metrics.METRICS[name][0]}
            assert {label.strip() for label in clause.split(",")} <= known, query


def test_every_metric_of_the_alerts_is_in_a_real_scrape(scraped: Samples) -> None:
    assert value(scraped, "rose_budget_dollars", ledger="ledger", team="chat") == 1000.0
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys()
        assert rule["expr"].count("(") == rule["expr"].count(")")
        named = re.findall(r"\b(rose_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert named, rule["alert"]
        for name, selector in named:
            assert name in metrics.METRICS, f"{rule['alert']}: {name} is not served"
            assert set(re.findall(r"(\w+)=~?\"", selector)) <= set(metrics.METRICS[name][0]), rule["alert"]
            assert scraped[name], f"{rule['alert']}: {name} has no sample"


def test_the_dashboard_is_whole() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    used = {name for text in map(json.dumps, board["panels"]) for name in re.findall(r"\$\{?(\w+)", text)}
    assert used - {"__all"} <= variables.keys()
    # Figures of two provenances are never in one panel's sum.
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            for name, selector in re.findall(r"\b(rose_\w+)\{([^}]*)\}", target["expr"]):
                if "provenance" in metrics.METRICS[name][0]:
                    assert 'provenance="$provenance"' in selector, panel["title"]
