from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.layout import LedgerError
from rose.pricing.alerts.config import AlertsConfig
from rose.pricing.alerts.gather import facts
from rose.pricing.alerts.rules import Facts, Meter, Requests, Unknown, Verification
from tests.pricing.closing.conftest import BOOK_TOML, HOUR_NS, T0_NS, S, begun, slice_, us, write

NOW_US = us(3 * 3600)


@pytest.fixture
def config(tmp_path: Path) -> Any:
    book = tmp_path / "book.toml"
    book.write_text(BOOK_TOML)
    hook = {"name": "c", "kind": "webhook", "url": "https://example.com", "secret_env": "S"}

    def made(*rules: dict[str, Any], **more: Any) -> AlertsConfig:
        named = [{"name": f"r{n}", "channels": ["c"]} | rule for n, rule in enumerate(rules)]
        return AlertsConfig.model_validate({"channel": [hook], "rule": named, "price_book": str(book)} | more)

    return made


def reading(from_s: int, to_s: int, device_id: str = "s0", power_mw: int | None = 1000) -> events.Power:
    return events.Power(
        device_id=device_id,
        t0_ns=T0_NS + from_s * S,
        t1_ns=T0_NS + to_s * S,
        power_mw=power_mw,
        source="other" if power_mw else "not measured",
        reason=None if power_mw else "no meter",
        at_us=us(to_s),
    )


def request(number: int, at_s: int, *, ttft_ms: int) -> events.Request:
    return events.Request(
        request_id=f"q{number}",
        device_id="s0",
        outcome="completed",
        prompt_tokens=1,
        output_tokens=1,
        ttft_ns=ttft_ms * 10**6,
        tpot_mean_ns=None,
        tpot_max_ns=None,
        e2e_ns=S,
        ttft_budget_ns=500 * 10**6,
        tpot_budget_ns=50 * 10**6,
        send_delay_ns=0,
        at_us=us(at_s),
    )


def test_only_what_a_rule_asks_for_is_looked_at(fleet: Path, config: Any, tmp_path: Path) -> None:
    nothing = facts(fleet, config(), NOW_US)
    assert nothing == Facts(verification=Verification(until_us=None, problems=0))
    with pytest.raises(LedgerError):
        facts(tmp_path / "nowhere", config(), NOW_US)


def test_requests_count_in_their_window_and_provenance(tmp_path: Path, config: Any) -> None:
    made = [request(0, 7000, ttft_ms=100), request(1, 8000, ttft_ms=100), request(2, 9000, ttft_ms=900)]
    root = write(tmp_path / "ledger", [*begun(), *made])
    write(root, [request(3, 9000, ttft_ms=900)], writer="other", provenance="simulated")
    slo = {"kind": "slo", "target": 0.9}
    found = facts(root, config(slo, slo | {"window": "1h"}, slo | {"window": "2h"}), NOW_US).requests
    assert {window: (one.requests, one.kept) for window, one in found.items() if isinstance(one, Requests)} == {
        3600: (2, 1),
        7200: (3, 2),
    }
    simulated = facts(root, config(slo, provenance="simulated"), NOW_US).requests[3600]
    assert isinstance(simulated, Requests)
    assert (simulated.requests, simulated.kept) == (1, 0)


def test_a_device_that_was_metered_and_is_there_is_looked_at(tmp_path: Path, config: Any) -> None:
    others: list[events.Event] = []
    for device_id in ("never", "gone"):
        joined = {"device_id": device_id, "pool": "serving", "device_class": "h100-sxm"}
        others.append(events.Device(action="joined", t_ns=T0_NS, at_us=us(0), **joined))  # type: ignore[arg-type]
        others.append(slice_(0, device_id, serving=3600))
    others.append(reading(0, 60, "never", None))
    others.append(reading(0, 60, "gone"))
    others.append(
        events.Device(
            action="left",
            t_ns=T0_NS + 3600 * S,
            at_us=us(3600),
            device_id="gone",
            pool="serving",
            device_class="h100-sxm",
        )
    )
    # It went on without readings, and said so.
    own = [slice_(0, serving=7200), reading(0, 60), reading(60, 7200, "s0", None)]
    root = write(tmp_path / "ledger", [*begun(), *others, *own])
    found = facts(root, config({"kind": "meter"}), NOW_US).meters
    assert found == (Meter(run_id="run", device_id="s0", read_ns=T0_NS + 60 * S, seen_ns=T0_NS + 2 * HOUR_NS),)


def test_what_cannot_be_priced_is_unknown_with_the_reason(fleet: Path, config: Any, tmp_path: Path) -> None:
    asked = config({"kind": "anomaly"}, price_book=str(tmp_path / "nowhere.toml"))
    found = facts(fleet, asked, NOW_US).odd_days
    assert isinstance(found, Unknown)
    assert "cannot read price book" in found.why
