"""Shared by all suites: options, the frame of a run, timing, and child processes."""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.table import Table

from rose.accept.report import ROOT, Report, phase
from rose.config import FleetConfig
from rose.errors import UserError
from rose.terminal import Screen, echo

T = TypeVar("T")
GROWTH_MAX = 1.05  #: Memory of a process may grow by so much from one third of a run to the next.
CACHE: Path = FleetConfig.model_fields["cache"].default.expanduser()  #: Models and recorded training runs.
_INTERRUPTED = 130

Part = Callable[[Report, Path], None]


def arguments(about: str | None, *, folder: bool = False, only: Iterable[str] = ()) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="under a minute; claims nothing about tails")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there as well")
    if only:
        parser.add_argument("--only", action="append", choices=[*only], help="measure this part alone; may be repeated")
    if folder:
        # A folder in memory would make every fsync free.
        about_folder = "on the disk to measure; else the current folder"
        parser.add_argument("--folder", type=Path, default=Path.cwd(), metavar="FOLDER", help=about_folder)
    return parser


def finish(report: Report, file: Path | None) -> None:
    """Print the report and write it to `file`, unless it has no claims."""
    report.show()
    if file is not None and not report.claims:
        echo(f"nothing was measured: {file} is left as it is", err=True)
    elif file is not None:
        file.write_text(report.text())
        echo(f"written to {file}", err=True)


@contextmanager
def measured(report: Report, file: Path | None, home: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder, then print and write the report. Exits with 130 if interrupted, 1 after UserError."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up as Ctrl-C does.
    code = 0
    try:
        with tempfile.TemporaryDirectory(prefix=f"{report.benchmark}-benchmark-", dir=home) as folder:
            yield Path(folder)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except UserError as error:
        echo(str(error), err=True)
        code = 1
    finally:
        finish(report, file)
    if code:
        sys.exit(code)


def measure_parts(report: Report, parts: Mapping[str, Part], folder: Path, only: Sequence[str] | None = None) -> None:
    """Measure every part, or `only` some, each in its own folder."""
    for name, part in parts.items():
        if not only or name in only:
            own = folder / name
            own.mkdir()
            with phase(name):
                part(report, own)


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def timed(act: Callable[[], T]) -> tuple[T, float]:
    began_s = time.perf_counter()
    result = act()
    return result, time.perf_counter() - began_s


def output(module: str, *arguments: object) -> str:
    """Return a Python module's output. Raises RuntimeError with its errors."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def growth(values: Sequence[float]) -> float | None:
    """Return the median of the last third over that of the third before; None below three values."""
    third = len(values) // 3
    return statistics.median(values[-third:]) / statistics.median(values[-2 * third : -third]) if third else None


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str]) -> None:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*row)
    Screen(width=140).print(table)
