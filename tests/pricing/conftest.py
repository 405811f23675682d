import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rose import events
from rose.cli import app
from rose.ledger.ledger import Ledger
from rose.pricing import console
from rose.pricing.answers import run_report
from rose.pricing.answers.run_report import Report
from rose.pricing.borrowing.alternatives import compare
from rose.pricing.borrowing.comparison import savings_table
from rose.pricing.closing.close import restate
from rose.pricing.period import Period
from rose.pricing.price_books.pricebook import PriceBook, load, parse
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.table import Element, Section, Table
from rose.terminal import Screen
from tests.pricing import any_event
from tests.pricing.closing.conftest import BOOK_TOML, DAY_NS, DEARER, close, fleet_events, us, weeks_events, write
from tests.pricing.marginal_cost.lending_books import PRICED

WriteLedger = Callable[..., Path]

#: The example's prices as somebody's own, which the books take.
OURS = parse(load("example").text.replace('name = "example"', 'name = "ours"'), "ours.toml")

T0_NS = int(datetime(2026, 6, 1, tzinfo=UTC).timestamp()) * 10**9
S = 10**9
#: The close of `half_closed`.
WEEK_CLOSE_ID = "2026-06-01-to-2026-06-08-live-1"


def shown(parts: Iterable[Element], width: int = console.WIDTH) -> str:
    terminal = Screen(width=width, file=io.StringIO())
    console.show(parts, screen=terminal)
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue()


def saved_in_run(root: Path, run_id: str, book: str | PriceBook | None = None) -> Table:
    with priced(Ledger(root), run_id, book) as run:
        return savings_table(run.make, compare(run), run.borrow)


def printed(parts: Iterable[Element]) -> str:
    return " ".join(shown(parts).split())


def rests_on(answer: Section, term: str) -> str:
    return str(answer.table("terms").row(term)["rests on"])


def section(
    root: Path, answer: Callable[..., Section], run_id: str | None = None, book: Any = None, **options: Any
) -> Section:
    with priced(Ledger(root), run_id, book) as run:
        return answer(run, **options)


def rose(*arguments: object, ledger: Path | None = None, **env: str) -> Result:
    given = {"COLUMNS": "200"} | ({} if ledger is None else {"ROSE_LEDGER": str(ledger)}) | env
    return CliRunner().invoke(app, list(map(str, arguments)), env=given)


def words(done: Result) -> str:
    return " ".join(done.output.split())


def succeeded(done: Result) -> str:
    assert done.exit_code == 0, done.output
    return words(done)


def data(done: Result) -> Any:
    succeeded(done)
    return json.loads(done.stdout)


def refused(done: Result, *says: str) -> None:
    """Assert that a command failed as for a wrong input: no figure, no traceback, and all of `says`."""
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert "Traceback" not in done.stderr
    for text in says:
        assert text in words(done), done.output


@pytest.fixture
def write_ledger(tmp_path: Path) -> WriteLedger:
    """Write events to a ledger as the run `run`; call again to add events of another writer, run or provenance."""

    def to_ledger(
        made: Iterable[events.Event],
        *,
        root: Path | None = None,
        writer: str = "test",
        run_id: str = "run",
        provenance: events.Provenance = "replay",
    ) -> Path:
        return write(root or tmp_path / "ledger", made, writer, provenance, run_id)

    return to_ledger


@pytest.fixture
def sample_made() -> list[events.Event]:
    return sample_events()


def a_copy_of(made: str, name: str = "ledger") -> Any:
    """Return a fixture: a copy of the fixture `made`, which nobody reads: its catalog would name its folder."""

    @pytest.fixture
    def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        return Path(shutil.copytree(request.getfixturevalue(made), tmp_path / name))

    return copied


def kept_copy_of(made: str, name: str = "ledger") -> Any:
    """Return `a_copy_of` for all tests that only read it."""

    @pytest.fixture(scope="session")
    def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return Path(shutil.copytree(request.getfixturevalue(made), tmp_path_factory.mktemp("kept") / name))

    return kept


@pytest.fixture(scope="session")
def sample_written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger small enough to price by hand; see `sample_events`."""
    return write(tmp_path_factory.mktemp("sample") / "ledger", sample_events(), provenance="replay")


sample, sample_kept = a_copy_of("sample_written"), kept_copy_of("sample_written")


@pytest.fixture(scope="session")
def priced_sample(sample_kept: Path) -> Iterator[PricedRun]:
    with priced(Ledger(sample_kept), "run") as run:
        yield run


@pytest.fixture(scope="session")
def sample_report(sample_kept: Path) -> Report:
    return run_report.build(Ledger(sample_kept), "run")


def sample_events() -> list[events.Event]:
    """One hour of a serving device that lends and a dedicated one, three groups, nine trajectories.

    Tokens, 1000 a trajectory: g0 on the borrowed device (accepted and correct; rejected, of which 600 after a move to
    the dedicated one; stale; lost), g1 on the dedicated device (accepted and wrong; accepted, not audited; rejected;
    no verdict yet), g2 there (rejected). A preemption threw away 100 more.
    """
    scales = {"keep_share": 0.25, "length_scale": 0.1, "output_length_scale": 0.5, "time_scale": 2.0}
    trace: dict[str, Any] = {"trace": "bursty"} | {f"trace_{name}": scale for name, scale in scales.items()}
    made: list[events.Event] = [events.Run(action="started", name="by hand", at_us=us(0), **trace)]
    for device_id, pool in (("s0", "serving"), ("r0", "rollout")):
        for action, after_s in (("joined", 0), ("left", 3600)):
            at = {"t_ns": T0_NS + after_s * S, "at_us": us(after_s)}
            made.append(any_event.device(action=action, device_id=device_id, pool=pool, **at))
    for n in (0, 1):
        made += [
            slice_("s0", n, serving=720, rollout=720, sync=36, activation=36, headroom=108, idle=180),
            slice_("r0", n, rollout=1080, train=540, sync=36, idle=144),
        ]
    made += [sync("s0", 2, 16, "inter-region"), sync("r0", 16, 16, "loopback")]
    made += [
        *lease("L1", 0, closed_s=1200, by="released"),
        *lease("L2", 1200, closed_s=2400, by="preempted"),
        *lease("L3", 2400, closed_s=3000, by="expired"),
        *lease("L4", 3000, expires_s=7200),
        events.Preemption(action="yield", reason="step", device_id="s0", duration_ns=5_000_000, at_us=us(60)),
    ]
    burst: dict[str, Any] = {"action": "revoke", "reason": "burst", "requests": 1, "tokens_kept": 400}
    made.append(events.Preemption(device_id="s0", lease_id="L2", tokens_lost=100, at_us=us(2400), **burst))
    made += [
        *trajectory("t0", "g0", 1, [("s0", 1000)], accepted=True, correct=True),
        *trajectory("t1", "g0", 1, [("s0", 400), ("r0", 600)], accepted=False),
        *trajectory("t2", "g0", 1, [("s0", 1000)], accepted=True, correct=True, stale=True),
        *trajectory("t3", "g0", 1, [("s0", 1000)], outcome="lost"),
        *trajectory("t4", "g1", 2, [("r0", 1000)], accepted=True, correct=False),
        *trajectory("t5", "g1", 2, [("r0", 1000)], accepted=True),
        *trajectory("t6", "g1", 2, [("r0", 1000)], accepted=False),
        *trajectory("t7", "g1", 2, [("r0", 1000)]),
        *trajectory("t8", "g2", 1, [("r0", 1000)], accepted=False),
    ]
    for n, (ttft_ms, lent) in enumerate([(100, True), (200, True), (2500, True), (90, False), (110, False)]):
        made.append(request(f"q{n}", 600 + n, ttft_ms, lent))
    return made


def slice_(device_id: str, half_hour: int, **seconds: int) -> events.DeviceSlice:
    return work(device_id, half_hour * 1800, **seconds)


def work(device_id: str, from_s: float, lease_id: str | None = None, **seconds: float) -> events.DeviceSlice:
    """A slice that begins at a second after T0 and lasts as long as its buckets together."""
    return any_event.slice_(T0_NS + round(from_s * S), device_id=device_id, lease_id=lease_id, unit_ns=S, **seconds)


def joined(device_id: str, pool: Any = "serving", device_class: str = "h100-sxm") -> events.Device:
    return any_event.device(device_id=device_id, t_ns=T0_NS, pool=pool, device_class=device_class)


def sync(device_id: str, wire_gb: int, dense_gb: int, route: str, *, ok: bool = True) -> events.Sync:
    sizes: dict[str, Any] = {"wire_bytes": wire_gb * 10**9, "dense_bytes": dense_gb * 10**9, "total_ns": S}
    encoding = "delta" if wire_gb < dense_gb else "dense"
    return any_event.sync(device_id=device_id, ok=ok, encoding=encoding, route=route, at_us=us(30), **sizes)


def lease(
    lease_id: str, granted_s: int, *, closed_s: int = 0, by: str | None = None, expires_s: int = 3600
) -> list[events.Lease]:
    plain: dict[str, Any] = {"lease_id": lease_id, "device_id": "s0", "expires_at_us": us(expires_s)}
    granted = any_event.lease(at_us=us(granted_s), **plain)
    return [granted, any_event.lease(action=by, at_us=us(closed_s), **plain)] if by else [granted]


def trajectory(
    trajectory_id: str,
    group_id: str,
    step: int,
    made_on: list[tuple[str, int]],
    *,
    outcome: str = "finished",
    accepted: bool | None = None,
    correct: bool | None = None,
    stale: bool = False,
) -> list[events.Event]:
    lost, ids = outcome == "lost", {"trajectory_id": trajectory_id, "group_id": group_id, "step": step}
    output_tokens = 0 if lost else sum(tokens for _, tokens in made_on)
    made: list[events.Event] = []
    for attempt, (device_id, tokens) in enumerate(made_on):
        last = attempt == len(made_on) - 1
        ended = "failed" if lost else "completed" if last else "preempted"
        counts = {"prompt_tokens": 50 + 400 * attempt, "output_tokens": tokens}
        counts |= {"answer_tokens": output_tokens // 4 if last else 0, "duration_ns": S, "at_us": us(100 + attempt)}
        made.append(any_event.turn(**ids, attempt=attempt, device_id=device_id, outcome=ended, **counts))
    counts = {"prompt_tokens": 50, "output_tokens": output_tokens, "answer_tokens": output_tokens // 4}
    made.append(any_event.trajectory(**ids, task="t", outcome=outcome, duration_ns=S, at_us=us(200), **counts))
    if accepted is not None:
        verdict = {"reward": float(accepted), "accepted": accepted, "correct": correct, "stale": stale}
        made.append(any_event.verdict(**ids, **verdict, at_us=us(300)))
    return made


def request(request_id: str, after_s: int, ttft_ms: int, lent: bool) -> events.Request:
    times = {"ttft_ns": ttft_ms * 1_000_000, "tpot_mean_ns": 50_000_000, "tpot_max_ns": 60_000_000, "e2e_ns": S}
    budgets = {"ttft_budget_ns": 2_000_000_000, "tpot_budget_ns": 250_000_000}
    sizes = {"prompt_tokens": 10, "output_tokens": 10}
    lease_id = "L1" if lent else None
    return any_event.request(
        request_id=request_id, device_id="s0", lease_id=lease_id, at_us=us(after_s), **times, **budgets, **sizes
    )


@pytest.fixture(scope="session")
def ledgers_folder() -> Iterator[None]:
    from tests.pricing.any_ledger import folder_of_ledgers

    yield
    shutil.rmtree(folder_of_ledgers())


@pytest.fixture(scope="session")
def fleet_made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of `fleet_events`, of provenance live; its bill is $3.60 + $0.20 for the sync + $0.06875 for energy."""
    return write(tmp_path_factory.mktemp("fleet") / "ledger", fleet_events())


@pytest.fixture(scope="session")
def closed_made(fleet_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`fleet` with its hour closed, as 2026-06-01T00-live-1."""
    root = Path(shutil.copytree(fleet_made, tmp_path_factory.mktemp("closed") / "ledger"))
    close(root)
    return root


@pytest.fixture(scope="session")
def weeks_made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("weeks") / "ledger", weeks_events())


@pytest.fixture(scope="session")
def half_closed_made(weeks_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `weeks` as `ledger`, its first seven days closed and corrected to a dearer price, and `book.toml`.

    A day costs $86.40, corrected $95.04.
    """
    folder = tmp_path_factory.mktemp("half")
    root = Path(shutil.copytree(weeks_made, folder / "ledger"))
    (folder / "book.toml").write_text(BOOK_TOML)
    close(root, Period(T0_NS, T0_NS + 7 * DAY_NS), now_us=(T0_NS + 21 * DAY_NS) // 1000)
    assert restate(Ledger(root), WEEK_CLOSE_ID, "contract 18", DEARER, now_us=(T0_NS + 22 * DAY_NS) // 1000)
    return folder


fleet, fleet_kept = a_copy_of("fleet_made"), kept_copy_of("fleet_made")
closed, closed_kept = a_copy_of("closed_made", "closed"), kept_copy_of("closed_made", "closed")
weeks, weeks_kept = a_copy_of("weeks_made", "weeks"), kept_copy_of("weeks_made", "weeks")
half_closed, half_closed_kept = a_copy_of("half_closed_made", "half"), kept_copy_of("half_closed_made", "half")


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of `test_harm.run`, whose leases were withheld at random, for tests that only read it."""
    from tests.pricing.marginal_cost.test_harm import run

    return write(tmp_path_factory.mktemp("held-out") / "ledger", run(), provenance="replay")


@pytest.fixture(scope="session")
def held_out_run(held_out: Path) -> Iterator[PricedRun]:
    with priced(Ledger(held_out), "run", PRICED) as run:
        yield run


@pytest.fixture(scope="session")
def never_withheld(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.pricing.marginal_cost.test_harm import run

    return write(tmp_path_factory.mktemp("never-withheld") / "ledger", run(windows=[]), provenance="replay")


@pytest.fixture(scope="session")
def never_withheld_run(never_withheld: Path) -> Iterator[PricedRun]:
    with priced(Ledger(never_withheld), "run", PRICED) as run:
        yield run
