"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES_MAX = 400
#: From this length on a module has a test file of its own.
MIRRORED_LINES = 60

#: Put together here, so that this file names none.
HOMES = [f"/{name}/" for name in ("work", "root")]

#: Longer than the rule, and why; each with the most it may have.
LONG: dict[str, tuple[int, str]] = {}

#: Modules without a test file of their own: which file tests them instead, and why.
TESTED_ELSEWHERE = {
    "rose/doctor.py": ("test_cli.py", "seen whole: the command is run"),
    "rose/ledger/catalog_file.py": ("ledger/test_catalog.py", "a catalog is made, and no half of one"),
    "rose/ledger/commands/common.py": ("ledger/commands/test_commands.py", "seen through the commands"),
    "rose/ledger/commands/inspect.py": ("ledger/commands/test_commands.py", "the commands are run"),
    "rose/ledger/checks/roll_ups.py": ("ledger/adversary/test_folder.py", "what verification says of a changed folder"),
    "rose/ledger/growth/rolled.py": ("ledger/growth/test_rollup.py", "what a roll-up leaves"),
    "rose/pricing/answers/report/tables.py": ("pricing/commands/test_correct.py", "the documents as printed"),
    "rose/pricing/document.py": ("pricing/run/test_report.py", "the report's own shape"),
    "rose/pricing/run/price_lines.py": ("pricing/run/test_report.py", "figures of the report"),
    "rose/pricing/run/operations.py": ("pricing/run/test_report.py", "rows of the report"),
    "rose/pricing/run/tables.py": ("pricing/run/test_report.py", "the report as printed"),
    "rose/runtime/engines/gpu/__init__.py": (
        "runtime/engines/gpu/test_sgl_kernel_absent.py",
        "engines without kernels",
    ),
    "rose/runtime/coserving/engine_lives.py": ("runtime/coserving/test_agent.py", "what an agent does with an engine"),
    "rose/runtime/coserving/telemetry.py": ("runtime/coserving/test_serving.py", "what an engine says of itself"),
    "rose/runtime/coserving/rollout.py": ("runtime/engines/test_sglang.py", "lives inside an engine"),
    "rose/runtime/coserving/scheduler.py": ("runtime/engines/test_sglang.py", "SGLang's scheduler, as it is"),
    "rose/runtime/coserving/words.py": ("runtime/coserving/test_page.py", "what the page holds"),
    "rose/runtime/rollout/trajectory.py": ("runtime/rollout/test_agent.py", "what an agent returns"),
    "rose/runtime/scheduling/client.py": ("runtime/scheduling/test_gateway.py", "the other end of the gateway"),
    "rose/runtime/scheduling/engine_calls.py": ("runtime/scheduling/test_gateway.py", "what engines are asked"),
    "rose/runtime/scheduling/messages.py": ("runtime/scheduling/test_gateway.py", "what the gateway takes and refuses"),
    "rose/runtime/scheduling/turn_queue.py": ("runtime/scheduling/test_gateway.py", "what goes where, and when"),
    "rose/runtime/scheduling/turns.py": ("runtime/scheduling/test_gateway.py", "what a turn keeps"),
}

SOURCES = sorted(
    path
    for folder in ("rose", "dashboard", "sql")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sql") and "__pycache__" not in path.parts
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def kept_files() -> list[Path]:
    """What git holds or would take up. Skips where this is no checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_path_of_a_developer_s_machine():
    found = [relative(path) for path in kept_files() for home in HOMES if home.encode() in path.read_bytes()]
    assert not found


def test_no_catalog_is_kept():
    """It holds the path of the folder that it was made in; who reads a ledger without one makes it."""
    assert [relative(path) for path in kept_files() if path.name == "ledger.duckdb"] == []


def test_the_sample_ledger_names_no_such_path_either():
    """Its text lies compressed in Parquet, where the bytes do not show it."""
    from rose.ledger import catalog

    sample = ROOT / "sample_traces" / "ledger"
    if not sample.exists():
        pytest.skip("sample_traces/ledger is not recorded yet; CONTRIBUTING.md says how")
    texts = "SELECT DISTINCT concat_ws(' ', model, config_json, host_json, reason, detail_json) FROM event"
    with catalog.connect(sample) as connection:
        rows = connection.execute(texts).fetchall()
    found = [text for (text,) in rows for home in HOMES if home in text]
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_file_is_too_long_to_read(path):
    most, _ = LONG.get(relative(path), (LINES_MAX, ""))
    assert lines(path) <= most


@pytest.mark.parametrize("name", LONG)
def test_an_exception_to_the_length_is_needed(name):
    assert lines(ROOT / name) > LINES_MAX, f"{name} is short enough: take it off the list"


@pytest.mark.parametrize("path", [path for path in SOURCES if path.suffix == ".py"], ids=relative)
def test_every_module_with_code_says_what_it_is(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree)


def mirror(path: Path) -> Path:
    below = path.relative_to(ROOT / "rose")
    return ROOT / "tests" / below.with_name(f"test_{below.name}")


LONG_ENOUGH = [path for path in sorted((ROOT / "rose").rglob("*.py")) if lines(path) > MIRRORED_LINES]


@pytest.mark.parametrize("path", LONG_ENOUGH, ids=relative)
def test_tests_mirror_the_code(path):
    if relative(path) in TESTED_ELSEWHERE:
        assert not mirror(path).exists(), f"{relative(path)} has a test file now: take it off the list"
        instead, _ = TESTED_ELSEWHERE[relative(path)]
        assert (ROOT / "tests" / instead).exists()
    else:
        assert mirror(path).exists(), f"{relative(path)} needs {relative(mirror(path))}"


def test_no_exception_is_left_over():
    assert set(TESTED_ELSEWHERE) <= {relative(path) for path in LONG_ENOUGH}
