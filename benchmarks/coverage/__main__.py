"""`python -m benchmarks.coverage`: how often a 95% interval covers the truth of simulated ledgers."""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.coverage import forecasts, groups, holdouts, lending, saved
from benchmarks.coverage.shown import Shown, Simulation
from benchmarks.shared import arguments, at_least_one, measured, show
from rose.accept.report import Report

AWAY_MAX = 2.0  #: 93% to 97% is as good as 95%.
LEDGERS_MIN = 300  #: A claim about coverage needs this many intervals.
#: Each case and its ledgers in the full form, so that chance alone seldom moves a figure out of bounds.
CASES: dict[str, tuple[Simulation, int]] = {
    "cost": (groups.cost, 2000),
    "elasticities": (groups.elasticities, 1000),
    "verdicts": (groups.verdicts, 1000),
    "energy": (lending.energy, 600),
    "harm": (holdouts.holdouts, 1000),
    "bursts": (lending.bursts, 1000),
    "saved": (saved.saved, 2000),
    "forecast": (forecasts.forecasts, 2000),
}
QUICK_LEDGERS = 12


def main(given: list[str] | None = None) -> None:
    parser = arguments(__doc__, only=list(CASES))
    parser.add_argument(
        "--ledgers", type=at_least_one, metavar="N", help="ledgers a case; a claim about coverage takes 300"
    )
    chosen = parser.parse_args(given)
    report = Report("coverage", chosen.quick, provenance="simulated")
    with measured(report, chosen.json):
        for name, (simulation, full) in CASES.items():
            if not chosen.only or name in chosen.only:
                count = chosen.ledgers or (QUICK_LEDGERS if chosen.quick else full)
                _claim(report, name, _run(name, simulation, count))
        _show(report)


def _run(name: str, simulation: Simulation, ledgers: int) -> list[Shown]:
    seeds = (np.random.default_rng([zlib.crc32(name.encode()), number]) for number in range(ledgers))
    shown: list[Shown] = []
    for random in track(seeds, f"{name}: {ledgers} simulated ledgers", total=ledgers, console=Console(stderr=True)):
        shown += simulation(random)
    return shown


def _claim(report: Report, case: str, shown: Iterable[Shown]) -> None:
    """Claim each figure's coverage away from 95%, and that no dishonest interval is shown."""
    by_figure: dict[str, list[Shown]] = defaultdict(list)
    dishonest = 0
    for one in shown:
        dishonest += one.never and one.low is not None
        by_figure[one.figure].append(one)
    for figure, each in by_figure.items():
        with_interval = [one for one in each if one.low is not None]
        why = Counter(one.why for one in each if one.low is None)
        covered = 100 * sum(one.covers for one in with_interval) / len(with_interval) if with_interval else None
        report.detail[figure] = {
            "case": case,
            "ledgers": len(each),
            "shown": len(with_interval),
            "covered_percent": covered,
            "chance_percent": _chance(sum(one.covers for one in with_interval), len(with_interval)),
            "truth_below": sum(one.low is not None and one.truth < one.low for one in with_interval),
            "not_shown_because": why.most_common(1)[0][0] if why else None,
        }
        if covered is not None and len(with_interval) >= LEDGERS_MIN:
            report.claim(f"{figure}: coverage away from 95%", abs(covered - 95), "points", AWAY_MAX, "lower")
    report.claim(f"{case}: intervals shown where none is honest", dishonest, "", 0, "lower")


def _chance(covered: int, shown: int) -> list[float] | None:
    from scipy.stats import binomtest

    return [100 * float(end) for end in binomtest(covered, shown).proportion_ci(method="exact")] if shown else None


def _show(report: Report) -> None:
    rows = [
        (
            figure,
            "-" if told["covered_percent"] is None else f"{told['covered_percent']:.1f}%",
            "" if (chance := told["chance_percent"]) is None else f"{chance[0]:.1f} to {chance[1]:.1f}",
            f"{told['truth_below']:,}",
            f"{told['shown']:,} of {told['ledgers']:,}",
            told["not_shown_because"] or "",
        )
        for figure, told in report.detail.items()
        if "covered_percent" in told
    ]
    columns = ("figure", "covered", "by chance", "truth below", "shown", "where none is shown")
    show("Simulated ledgers whose 95% interval covers the truth", columns, rows, left=(columns[0], columns[-1]))


if __name__ == "__main__":
    main()
