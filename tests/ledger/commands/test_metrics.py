from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rose.events import Sync
from rose.ledger.upkeep.jobs import Settings, ledger_jobs, run_job
from rose.ledger.upkeep.metrics import text
from rose.ledger.writer import LedgerWriter

DOCUMENT = Path(__file__).parents[3] / "docs" / "ledger.md"
RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rose-ledger.yml"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, lease: Any, request_event: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger in which every metric has a value."""
    monkeypatch.chdir(tmp_path)
    for variable in ("ROSE_LEDGER", "ROSE_METRICS_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with LedgerWriter.open("ledger", "w", "r") as writer:
        writer.record(lease(device_id="d"))
        writer.record(request_event(device_id="d"))
        writer.record(
            Sync(
                device_id="d",
                ok=True,
                base_version=0,
                encoding="delta",
                wire_bytes=1,
                dense_bytes=1,
                total_ns=1,
                source="relay",
                route="loopback",
            )
        )
    return tmp_path / "ledger"


def exported(root: Path) -> dict[str, set[str]]:
    """Each metric that can be scraped, with its labels; those of jobs once jobs ran."""
    for job in ledger_jobs(Settings()):
        run_job(root, job)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text(root)):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = {label for sample in family.samples for label in sample.labels}
    return found


def test_the_documented_rules_speak_of_metrics_that_are_there(root: Path) -> None:
    alerts = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    names = exported(root)
    ((group,),) = alerts.values()
    assert len(group["rules"]) >= 5
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys()
        asked = re.findall(r"(rose_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert asked, rule["alert"]
        for name, selector in asked:
            assert name in names, f"{rule['alert']}: nothing is exported as {name}"
            labels = set(re.findall(r"(\w+)=~?\"", selector))
            if names[name]:
                assert labels <= names[name], f"{rule['alert']}: {name} has no such label"
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_every_metric_is_documented(root: Path) -> None:
    table = DOCUMENT.read_text(encoding="utf-8")
    for name, labels in exported(root).items():
        (line,) = [line for line in table.splitlines() if line.startswith("|") and f"`{name}`" in line]
        documented = set(re.findall(r"`(\w+)`", line.rsplit("|", 2)[1]))
        assert labels in (documented, set()), name
