import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rose.pricing.api import metrics
from rose.pricing.commands.api import DEFAULT_PORT
from tests.pricing.closing.conftest import BOOK_TOML
from tests.pricing.conftest import refused, rose

ROOT = Path(__file__).parents[3]
ROSE = str(Path(sys.executable).with_name("rose"))
SAMPLE = ROOT / "sample_traces" / "ledger"
#: Its calls are made here, of a server on the sample ledger: api.md.
DOCUMENT = ROOT / "docs" / "api.md"
ADDRESS = f"http://127.0.0.1:{DEFAULT_PORT}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def calls() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith("curl ")]


@contextmanager
def started(*arguments: str | Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [ROSE, "api", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " at http" in line, process.communicate()[1]
            yield line.split(" at ")[1].split()[0], process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def sample_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not SAMPLE.exists():
        pytest.skip("the sample ledger is not recorded yet; CONTRIBUTING.md says how")
    root = shutil.copytree(SAMPLE, tmp_path_factory.mktemp("sample") / "ledger")
    with started(root, "--price-book", "example") as (url, _):
        yield url


@pytest.mark.long
@pytest.mark.parametrize("line", calls())
def test_a_documented_call_is_answered(sample_url: str, line: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    assert ADDRESS in line
    command = [*shlex.split(line.replace(ADDRESS, sample_url)), "--fail-with-body"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "/metrics" in line:
        assert list(text_string_to_metric_families(done.stdout))
        return
    assert json.loads(done.stdout)


def test_every_metric_is_documented_with_its_labels() -> None:
    table = [line for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("| `rose_")]
    documented = {
        name: tuple(re.findall(r"`(\w+)`", line.split("|")[2]))
        for line in table
        for name in re.findall(r"`(rose_\w+)`", line.split("|")[1])
    }
    assert documented == {name: labels for name, (labels, _) in metrics.METRICS.items()}


def test_the_documented_scrape_is_of_where_it_is_served() -> None:
    (block,) = blocks("yaml")
    ((job,),) = yaml.safe_load(block).values()
    assert job["static_configs"] == [{"targets": [ADDRESS.removeprefix("http://")]}]


@pytest.mark.long
def test_it_serves_until_it_is_stopped(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "book.toml").write_text(BOOK_TOML)
    (tmp_path / "token").write_text("0123456789abcdef\n")
    with started(f"mine={fleet}", "-b", tmp_path / "book.toml", "--token-file", tmp_path / "token") as (url, process):
        statuses = []
        for headers in ({}, {"Authorization": "Bearer 0123456789abcdef"}):
            request = urllib.request.Request(f"{url}/trust", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=280) as response:
                    trust = json.load(response)
                    statuses.append(response.status)
            except urllib.error.HTTPError as error:
                statuses.append(error.code)
        assert statuses == [401, 200]
        assert (trust["ledger"], trust["sound"]) == ("mine", True)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "")
    assert [line.split()[2:5] for line in errors.splitlines()] == [["GET", "/trust", "401"], ["GET", "/trust", "200"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere is not a ledger"),
        (["LEDGER", "LEDGER"], "two ledgers are called 'ledger'"),
        (["LEDGER", "--host", "0.0.0.0"], "can be reached from other machines: give a token"),
        (["LEDGER", "--token-file", "nowhere"], "--token-file nowhere: "),
        (["LEDGER", "--price-book", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_message(fleet: Path, arguments: list[Any], says: str) -> None:
    given = (fleet if word == "LEDGER" else word for word in arguments)
    done = rose("api", *given, "--port", "0", ROSE_API_TOKEN="")
    assert done.stderr.startswith("rose: ")
    refused(done, says)
