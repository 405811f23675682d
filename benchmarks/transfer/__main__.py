"""`python -m benchmarks.transfer`: bytes and seconds of a new version on its way to an engine, beside other ways."""

from benchmarks.shared import arguments, measure_parts, measured
from benchmarks.transfer import cases, join, link, pause, shards
from benchmarks.transfer.scope import QUICK, Scope
from rose.accept.report import Report

PARTS = {
    "cases": cases.measure,
    "link": link.measure,
    "join": join.measure,
    "shards": shards.measure,
    "pause": pause.measure,
}


def main() -> None:
    given = arguments(__doc__, folder=True, only=PARTS).parse_args()
    report, scope = Report("transfer", given.quick, provenance="simulated"), QUICK if given.quick else Scope()
    parts = {name: lambda report, folder, part=part: part(report, folder, scope) for name, part in PARTS.items()}
    with measured(report, given.json, given.folder) as folder:
        measure_parts(report, parts, folder, given.only)


if __name__ == "__main__":
    main()
