import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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

pytestmark = pytest.mark.skipif(not chromium.is_there(), reason=chromium.MISSING)


@pytest.fixture
def serve(gone: Any, tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """Start `rose dashboard` on a ledger; nothing of it may be left after the test."""
    with ExitStack() as stack:
        started = []

        def start(ledger: Path) -> str:
            url, server = stack.enter_context(chromium.served(ledger, tmp_path))
            started.append(server)
            return url

        yield start
    assert [gone(server.pid) for server in started] == [[] for _ in started]


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium.chromium(Screen()) as driver:
        yield driver


def drawn(browser: Any) -> int:
    """The number of drawn charts: a canvas or SVG with a size."""
    return int(
        browser.execute_script(
            "return [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].filter(chart => "
            "{ const mark = chart.querySelector('canvas, svg'); return mark && mark.clientHeight > 60; }).length"
        )
    )


def text(browser: Any) -> str:
    return str(browser.execute_script("return document.body.innerText"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_draws_its_charts_and_has_no_error_and_no_serious_finding_of_axe(
    serve: Any, browser: Any, ended: Path, dark: bool
) -> None:
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    chromium.resize(browser, Screen(dark=dark))
    url, found = serve(ended), {}
    # A page's own address must work on a server that has shown nothing yet.
    for title, address in reversed(chromium.pages(browser, url).items()):
        browser.get(address)
        wait_for(f"all of {title}", lambda: chromium.settled(browser))
        assert bool(drawn(browser)) == (title not in WITHOUT_CHARTS), title
        assert title == "Trust" or "SIMULATED" in text(browser)
        assert "Traceback" not in text(browser)
        assert len(browser.find_elements("css selector", "h1")) == 1
        browser.execute_script(axe)
        for finding in browser.execute_async_script("axe.run(document).then(arguments[0])")["violations"]:
            if finding["impact"] in ("serious", "critical") and finding["id"] not in STREAMLITS_OWN:
                found[title, finding["id"]] = [(node["html"], node["failureSummary"]) for node in finding["nodes"][:3]]
    assert found == {}
    # Streamlit itself probes for its base address below each page, and is told 404.
    log = [entry for entry in browser.get_log("browser") if "/_stcore/" not in entry["message"]]
    assert [entry for entry in log if entry["level"] == "SEVERE"] == []


def test_nothing_is_clipped_on_a_phone(serve: Any, browser: Any, ended: Path) -> None:
    url = serve(ended)
    chromium.resize(browser, Screen(390, 844))
    for page in ("", "borrowing"):
        browser.get(f"{url}/{page}")
        wait_for(page, lambda: chromium.settled(browser))
        cut = "[...document.querySelectorAll('[data-testid=stMetricLabel] *, [data-testid=stTable] :is(td, th)')]"
        assert (
            browser.execute_script(
                f"return {cut}.filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth)\
            .map(e => e.textContent)"
            )
            == []
        ), page
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_a_live_page_follows_the_run_in_place_and_stops_when_it_ends(
    serve: Any, browser: Any, tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run whose events are old is silent, and its page does not follow it every few seconds.
    monkeypatch.setattr(kit, "T0_NS", (int(time.time()) - 600) * 10**9)
    first, second = (words.when(datetime.fromtimestamp(kit.us(at_s) / 1e6, UTC)) for at_s in (30, 60))
    root = tmp_path / "ledger"
    with kit.live_writer(root) as record:
        record([kit.started(), *kit.joined(), *kit.a_step(0)])
        browser.get(f"{serve(root)}/fleet")
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
