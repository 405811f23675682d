import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from dashboard import format as words
from rose import events
from tests.dashboard import browser as chromium
from tests.dashboard.browser import Screen, wait_for

#: Pages on which this ledger has nothing to draw.
WITHOUT_CHARTS = {"Borrowing", "Runs", "Books", "Trust"}
#: Streamlit's tables number their cells from 0 each; newer versions of axe no longer ask.
STREAMLITS_OWN = {"duplicate-id-active"}
#: Rules of axe that depend on the theme.
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
#: What else axe reports takes most of its time.
ONLY_VIOLATIONS = {"resultTypes": ["violations"], "selectors": False}
#: Texts that are wider than their box.
CLIPPED = """return [...document.querySelectorAll('[data-testid=stMetricLabel] *, [data-testid=stTable] :is(td, th)')]
    .filter(text => text.scrollWidth > text.clientWidth + 1 && text.clientWidth).map(text => text.textContent)"""

pytestmark = pytest.mark.skipif(not chromium.is_there(), reason=chromium.MISSING)


@pytest.fixture(scope="module")
def ledger(ended: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(ended, tmp_path_factory.mktemp("served") / "ledger")


@pytest.fixture(scope="module")
def url(ledger: Path, gone: Any) -> Iterator[str]:
    """Serve the ledger; no process of the server may be left."""
    with chromium.served(ledger, ledger.parent) as (address, server):
        yield address
    assert gone(server.pid) == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium.chromium(Screen()) as driver:
        yield driver


def drawn(browser: Any) -> int:
    return int(
        browser.execute_script(
            "return [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].filter(chart => "
            "{ const mark = chart.querySelector('canvas, svg'); return mark && mark.clientHeight > 60; }).length"
        )
    )


def text(browser: Any) -> str:
    return str(browser.execute_script("return document.body.innerText"))


def test_every_page_draws_its_charts_and_has_no_error_and_no_serious_finding_of_axe(url: str, browser: Any) -> None:
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    serious = {}
    # A page's own address must work on a server that has shown nothing yet.
    for number, (title, address) in enumerate(reversed(chromium.pages(browser, url).items())):
        themes = (Screen(dark=number % 2 == 0), Screen(dark=number % 2 == 1))
        chromium.resize(browser, themes[0])
        browser.get(address)
        wait_for(f"all of {title}", lambda: chromium.settled(browser))
        assert title == "Trust" or "SIMULATED" in text(browser)
        assert "Traceback" not in text(browser)
        assert len(browser.find_elements("css selector", "h1")) == 1
        browser.execute_script(axe)
        for screen, rules in zip(themes, ({}, COLOURS), strict=True):
            chromium.resize(browser, screen)
            wait_for(f"{title} in its theme", lambda: chromium.settled(browser))
            assert bool(drawn(browser)) == (title not in WITHOUT_CHARTS), title
            run = f"axe.run(document, {json.dumps(rules | ONLY_VIOLATIONS)}).then(arguments[0])"
            for finding in browser.execute_async_script(run)["violations"]:
                if finding["impact"] in ("serious", "critical") and finding["id"] not in STREAMLITS_OWN:
                    nodes = [(node["html"], node["failureSummary"]) for node in finding["nodes"][:3]]
                    serious[title, screen.dark, finding["id"]] = nodes
        chromium.resize(browser, Screen(390, 844))
        wait_for(f"{title} on a phone", lambda: chromium.settled(browser))
        assert browser.execute_script(CLIPPED) == [], title
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert serious == {}
    # Streamlit itself probes for its base address below each page, and is told 404.
    log = [entry for entry in browser.get_log("browser") if "/_stcore/" not in entry["message"]]
    assert [entry for entry in log if entry["level"] == "SEVERE"] == []


def test_a_live_page_follows_the_run_in_place_and_stops_when_it_ends(
    url: str, browser: Any, ledger: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run whose events are old is silent, and its page does not follow it every few seconds.
    monkeypatch.setattr(kit, "T0_NS", (int(time.time()) - 600) * 10**9)
    first, second = (words.when(datetime.fromtimestamp(kit.us(at_s) / 1e6, UTC)) for at_s in (30, 60))
    chromium.resize(browser, Screen())
    with kit.live_writer(ledger, "live") as record:
        record([kit.started(), *kit.joined(), *kit.a_step(0)])
        browser.get(f"{url}/fleet?run=live")
        wait_for("the first step", lambda: first in text(browser) and drawn(browser) == 3)
        # A mark that a reload of the page or a new chart would lose.
        charts = "[...document.querySelectorAll('[data-testid=stVegaLiteChart]')]"
        browser.execute_script(f"{charts}.forEach(chart => chart.dataset.mark = 'same')")
        record(kit.a_step(1))
        wait_for("the second step", lambda: second in text(browser))
        assert browser.execute_script(f"return {charts}.map(chart => chart.dataset.mark)") == ["same"] * 3
        record([*kit.left(60), events.Run(action="ended", name="little fleet", at_us=kit.us(60))])
        wait_for("the end", lambda: ", running." not in text(browser) and "ended" in text(browser))
        assert drawn(browser) == 3
