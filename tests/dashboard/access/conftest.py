from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from benchmarks.dashboard.visitor import Visitor

WAIT_S = 90


def beside(name: str) -> ModuleType:
    """A module of this folder: tests are imported by path."""
    full_name = f"dashboard_access_{name}"
    if full_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(full_name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[full_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[full_name]


@dataclass
class Dashboard:
    """One that runs, with login."""

    url: str
    provider: Any
    state: Path
    output: Path

    def visitor(self, subject: str | None = None, **claims: Any) -> Any:
        """A browser; with `subject`, of somebody who logged in."""
        browser = Visitor(self.url)
        if subject is not None:
            self.provider.person = {"sub": subject, **claims}
            browser.log_in()
        return browser

    def log(self) -> list[dict[str, Any]]:
        """The lines of the access log."""
        return [json.loads(line) for line in (self.state / "access.jsonl").read_text(encoding="utf-8").splitlines()]


ROLES = """
[roles.finance]
emails = ["Cfo@example.com"]

[roles.infra]
groups = ["gpu-operators"]

[roles.viewer]
domains = ["example.org"]
"""


@pytest.fixture(scope="session")
def dashboard(ended: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """`rose dashboard` with login at a provider of its own, on the ledger of a run that ended."""
    provider_module = beside("provider")
    folder = tmp_path_factory.mktemp("access")
    with socket.socket() as free, provider_module.running() as provider:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        url = f"http://127.0.0.1:{port}"
        secret = folder / "client-secret"
        secret.write_text(provider_module.CLIENT_SECRET + "\n")
        secret.chmod(0o600)
        auth = folder / "auth.toml"
        auth.write_text(
            f'issuer = "{provider.issuer}"\nclient_id = "{provider_module.CLIENT_ID}"\n'
            'client_secret_file = "client-secret"\nstate = "state"\n'
            f'redirect_url = "{url}/oauth2callback"\n{ROLES}'
        )
        output = folder / "output"
        rose = [sys.executable, "-m", "rose.cli", "dashboard", "--ledger", str(ended)]
        with output.open("wb") as file:
            server = subprocess.Popen(
                [*rose, "--port", str(port), "--auth", str(auth)],
                cwd=folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait(server, f"{url}/_stcore/health", output)
            yield Dashboard(url=url, provider=provider, state=folder / "state", output=output)
        finally:
            os.killpg(server.pid, signal.SIGINT)
            server.wait(20)


def _wait(server: subprocess.Popen[bytes], url: str, output: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert server.poll() is None, output.read_text()
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"not up after {WAIT_S} s: {output.read_text()}")


@pytest.fixture
def honest(dashboard: Dashboard) -> Iterator[Dashboard]:
    """The same; whatever its provider was told to lie is forgotten afterwards."""
    yield dashboard
    dashboard.provider.lies, dashboard.provider.forger = {}, None


@pytest.fixture
def write_auth(tmp_path: Path) -> Callable[..., Path]:
    """A login file that is right but for what is given; a line that begins with a field's name replaces it."""

    def write(*lines: str) -> Path:
        (tmp_path / "client-secret").write_text("s3cret-of-the-client")
        (tmp_path / "client-secret").chmod(0o600)
        fields = {
            "issuer": 'issuer = "https://login.example.com"',
            "client_id": 'client_id = "rose"',
            "client_secret_file": 'client_secret_file = "client-secret"',
            "redirect_url": 'redirect_url = "https://rose.example.com/oauth2callback"',
            "state": 'state = "state"',
        }
        top = [line for line in lines if not line.startswith("[")]
        fields |= {line.partition("=")[0].strip(): line for line in top}
        tables = [line for line in lines if line.startswith("[")] or [ROLES]
        path = tmp_path / "auth.toml"
        path.write_text("\n".join([*fields.values(), *tables]) + "\n", encoding="utf-8")
        return path

    return write
