import ast
import collections
import functools
import importlib.metadata
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LINES_MAX = 700

#: What prints: all else of the product prints through it.
TERMINAL = "rose/terminal.py"
#: Their output is a log, a pipe or a trainer's; they print no text from outside.
PRINTERS = {"rose/client/run.py", "rose/runtime/engines/adoption.py", "rose/runtime/engines/forkserver_main.py"}
#: Calls that print text, and names of rich that take text for markup.
PRINTING = {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write"}
RICH = {"rich.console.Console", "rich.text.Text", "rich.markup", "rich.print"}
#: What shows the dashboard's tables and charts, and Streamlit's own calls, which show text as it is.
DISPLAY = "dashboard/escape.py"
SHOWING = {"st.dataframe", "st.table", "st.data_editor", "st.altair_chart", "st.vega_lite_chart"}

#: Put together here, so that this file names none.
HOMES = [f"/{name}/" for name in ("work", "root")]

SOURCES = sorted(
    path
    for folder in ("rose", "dashboard", "sql")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sql") and "__pycache__" not in path.parts
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def kept_files() -> list[Path]:
    """Return what git holds or would add. Skips without a checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_path_of_a_developer_s_machine():
    assert not [relative(path) for path in kept_files() for home in HOMES if home.encode() in path.read_bytes()]


def test_no_catalog_is_kept():
    """It holds the path of its folder, and readers make it."""
    assert [relative(path) for path in kept_files() if path.name == "ledger.duckdb"] == []


def test_the_sample_ledger_names_no_such_path_either():
    """Its text is compressed in Parquet."""
    from rose.ledger.files import catalog

    sample = ROOT / "sample_traces" / "ledger"
    if not sample.exists():
        pytest.skip("sample_traces/ledger is not recorded yet; CONTRIBUTING.md says how")
    texts = "SELECT DISTINCT concat_ws(' ', model, config_json, host_json, reason, detail_json) FROM event"
    with catalog.connect(sample) as connection:
        rows = connection.execute(texts).fetchall()
    assert not [text for (text,) in rows for home in HOMES if home in text]


def test_no_file_is_too_long_to_read():
    lengths = ((relative(path), len(path.read_text(encoding="utf-8").splitlines())) for path in SOURCES)
    assert [(path, count) for path, count in lengths if count > LINES_MAX] == []


FILES_MAX = 14
FULL = {"benchmarks/results"}


def test_no_folder_is_too_full_to_look_through():
    counts = collections.Counter(
        folder
        for path in kept_files()
        if (folder := relative(path.parent)).split("/")[0] in ("rose", "dashboard", "tests", "benchmarks")
        and path.name not in ("__init__.py", "__main__.py")
        and path.suffix in (".py", ".json")
    )
    assert {folder: count for folder, count in counts.items() if count > FILES_MAX and folder not in FULL} == {}


def test_every_module_with_code_says_what_it_is():
    trees = {relative(path): tree_of(path) for path in SOURCES if path.suffix == ".py"}
    assert [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def printing(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    return (calls & (PRINTING | SHOWING)) | (names & RICH)


def test_text_is_shown_where_nothing_in_it_is_obeyed():
    paths = [path for path in SOURCES if path.suffix == ".py" and relative(path) not in {TERMINAL, DISPLAY, *PRINTERS}]
    prints = {relative(path): printing(tree_of(path)) for path in paths}
    assert {path: names for path, names in prints.items() if names} == {}
    assert printing(ast.parse("from rich.text import Text\ndef f():\n    print('x')")) == {"print", "rich.text.Text"}


def test_the_formatter_is_off_nowhere():
    marks = ("# fmt: " + "skip", "# fmt: " + "off")
    texts = {relative(path): path.read_text(encoding="utf-8") for path in kept_files() if path.suffix == ".py"}
    assert [path for path, text in texts.items() if any(mark in text for mark in marks)] == []


#: Package, first version without the hole, and advisory.
HOLES = [
    ("aiohttp", "3.14.4", "CVE-2026-111064"),
    ("aiosmtpd", "1.4.6", "CVE-2024-34083"),
    ("authlib", "1.7.1", "CVE-2026-44681"),
    ("cryptography", "50.0.0", "CVE-2026-69247"),
    ("flask-cors", "6.0.0", "CVE-2024-6839"),
    ("fsspec", "2026.6.0", "CVE-2026-104851"),
    ("jinja2", "3.1.6", "CVE-2025-27516"),
    ("joserfc", "1.7.3", "CVE-2026-75509"),
    ("pyarrow", "23.0.1", "CVE-2026-25087"),
    ("pytest", "9.0.3", "CVE-2025-71176"),
    ("ray", "2.54.0", "CVE-2026-27482"),
    ("sglang", "0.5.21", "CVE-2026-93034"),
    ("starlette", "1.3.1", "PYSEC-2026-249"),
    ("streamlit", "1.53.1", "CVE-2026-10804"),
    ("torch", "2.11.0", "CVE-2026-4538"),
    ("transformers", "5.3.0", "CVE-2026-5241"),
]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = list(map(Requirement, PROJECT["dependencies"]))


def of_extras() -> list[Requirement]:
    requirements = [Requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra]
    return [one for one in requirements if one.name != PROJECT["name"]]


def requirements() -> list[Requirement]:
    return [*BASE, *of_extras()]


def lowest(requirement: Requirement) -> Version:
    return max(Version(one.version) for one in requirement.specifier if one.operator in (">=", "=="))


def test_each_dependency_is_named_once_with_a_lower_bound() -> None:
    """An extra may raise a bound of the base."""
    bounds = {canonicalize_name(one.name): lowest(one) for one in BASE}
    once = [one for one in of_extras() if lowest(one) <= bounds.get(canonicalize_name(one.name), lowest(one))]
    names = [canonicalize_name(one.name) for one in (*BASE, *once)]
    assert sorted(set(names)) == sorted(names)
    assert [one.name for one in requirements() if not {">=", "=="} & {part.operator for part in one.specifier}] == []


BASE_MAX = 10


def test_the_base_install_leaves_a_trainer_s_and_a_serving_image_as_they_are() -> None:
    assert len(BASE) <= BASE_MAX
    bounds = {canonicalize_name(one.name): one.specifier for one in BASE}
    assert not {"torch", "sglang"} & set(bounds)
    requirements_of_sglang = [Requirement(text) for text in importlib.metadata.requires("sglang") or ()]
    pins = {canonicalize_name(one.name): lowest(one) for one in requirements_of_sglang if "==" in str(one.specifier)}
    pins["numpy"] = Version("1.26.4")  # SGLang asks for any, and trainers keep this one.
    assert {name for name in bounds if name in pins and pins[name] not in bounds[name]} == set()
    assert {"numba", "numpy"} <= bounds.keys() & pins.keys()


@pytest.mark.parametrize(("package", "fixed", "advisory"), HOLES)
def test_the_lowest_version_of_a_dependency_has_no_known_hole(package: str, fixed: str, advisory: str) -> None:
    (requirement,) = (one for one in requirements() if canonicalize_name(one.name) == package)
    assert lowest(requirement) >= Version(fixed), (
        f"{requirement} allows versions with {advisory}: raise its lower bound"
    )


def test_s3fs_and_fsspec_go_together() -> None:
    """Each s3fs wants the fsspec of its own version."""
    bounds = {one.name: lowest(one) for one in requirements()}
    assert bounds["s3fs"] == bounds["fsspec"]


@pytest.mark.parametrize("file", ["constraints-cpu.txt", "gpu-native.txt", "sglang-cpu-nodeps.txt"])
def test_pinned_versions_are_allowed(file: str) -> None:
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pins = {canonicalize_name(pin.name): lowest(pin) for pin in map(Requirement, lines)}
    assert pins
    pairs = [(one, pins.get(canonicalize_name(one.name))) for one in requirements()]
    assert [f"{one}, pinned at {pin}" for one, pin in pairs if pin is not None and pin not in one.specifier] == []
