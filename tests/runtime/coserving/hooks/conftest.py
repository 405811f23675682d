from dataclasses import replace
from types import SimpleNamespace

import pytest

from rose.clock import monotonic_ns
from rose.runtime.coserving import scheduler
from rose.runtime.coserving.hooks import beside, gate, requests, telemetry
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.policy.slack import Budgets
from tests.runtime.coserving.lending import MEMORY

BUDGET_NS = 1_000_000_000
SHARED = replace(MEMORY, device_bytes=1 << 20, serving_bytes_per_token=10, rollout_bytes_per_token=10)


@pytest.fixture
def page(tmp_path):
    page = ArbiterPage.create(tmp_path / "page")
    page.set_terms(Budgets(BUDGET_NS, BUDGET_NS), 64, SHARED)
    return page


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now_ns=monotonic_ns())
    for module in (beside, gate, requests, scheduler, telemetry):
        monkeypatch.setattr(module, "monotonic_ns", lambda: made.now_ns)
    return made
