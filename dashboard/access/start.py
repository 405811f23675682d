"""How the dashboard is started: on this machine alone, or with login; and what Streamlit is told either way."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dashboard.access import auth_file, log
from dashboard.access.auth_file import Auth, AuthError
from rose import secret_file
from rose.errors import UserError
from rose.ledger.address import is_loopback

#: Names the file of the login to the process that shows the pages.
AUTH_VARIABLE = "ROSE_DASHBOARD_AUTH"
APP = Path(__file__).parents[1] / "app.py"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: What Streamlit itself reads of the login; there while the dashboard runs.
_STREAMLIT_SECRETS = "streamlit-secrets.toml"
_LOCK = "lock"


class UnsafeError(UserError):
    """Other machines could open the dashboard, and nobody would have to log in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The process to run, and what to say of it."""

    command: list[str]
    environment: dict[str, str]
    says: list[str]


@contextmanager
def prepared(ledger: Path, host: str, port: int, auth_path: Path | None) -> Iterator[Start]:
    """What shows `ledger` at `host`:`port` while the block runs.

    Raises UnsafeError if other machines could open it without login, AuthError if the login cannot be used.
    """
    environment = {**os.environ, "ROSE_LEDGER": str(ledger)}
    if auth_path is None:
        refuse_without_login(host)
        environment.pop(AUTH_VARIABLE, None)
        shown = f"[{host}]" if ":" in host else host
        says = [f"ledger {ledger}", f"open http://{shown}:{port} (Ctrl-C ends it)"]
        hosts = dict.fromkeys((*_LOOPBACK, host))
        yield Start(
            command=_command(host, port, [f"--server.allowedHosts={name}" for name in hosts]),
            environment=environment,
            says=says,
        )
        return
    auth = auth_file.load(auth_path)
    secret = auth_file.client_secret(auth, environment)
    if auth.client_secret_env is not None:
        del environment[auth.client_secret_env]
    environment[AUTH_VARIABLE] = str(auth_path.absolute())
    says = [
        f"ledger {ledger}",
        f"open {auth.redirect_url.removesuffix(auth_file.CALLBACK)}/ (Ctrl-C ends it)",
        f"login at {auth.issuer}",
        f"access log {auth.state / log.FILE}",
    ]
    with _alone(auth.state):
        secrets = auth.state / _STREAMLIT_SECRETS
        try:
            secret_file.write(secrets, _streamlit_secrets(auth, secret))
            command = _command(host, port, [f"--secrets.files={secrets}", *_public(auth, host)])
            yield Start(command=command, environment=environment, says=says)
        finally:
            secrets.unlink(missing_ok=True)


def refuse_without_login(host: str) -> None:
    """Raises UnsafeError unless this machine alone can reach `host`."""
    if not is_loopback(host):
        raise UnsafeError(
            f"--host {host} can be reached from other machines, and nobody would have to log in: name a login file by "
            "--auth (docs/dashboard-access.md shows one), or leave --host out"
        )


def _command(host: str, port: int, more: list[str]) -> list[str]:
    """Streamlit with every option that matters, so that no file or variable of its own changes one."""
    options = (
        f"--server.address={host}",
        f"--server.port={port}",
        "--server.headless=true",
        "--server.enableCORS=true",
        "--server.enableXsrfProtection=true",
        "--server.enableStaticServing=false",
        "--server.enableAgentApi=false",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
    )
    return [sys.executable, "-m", "streamlit", "run", str(APP), *options, *more]


def _public(auth: Auth, host: str) -> list[str]:
    """The names under which people come, behind a proxy or not; and no way to take a table along that is not logged."""
    hosts = dict.fromkeys((auth.public_host, host, *_LOOPBACK))
    return [
        *(f"--server.allowedHosts={name}" for name in hosts),
        f"--server.corsAllowedOrigins={auth.origin}",
        f"--server.baseUrlPath={auth.base_path}",
        f"--browser.serverAddress={auth.public_host}",
        "--client.disableDataExport=true",
    ]


def _streamlit_secrets(auth: Auth, client_secret: str) -> str:
    """The table that `st.login` reads. A JSON string is a TOML string."""
    values = {
        "redirect_uri": auth.redirect_url,
        "cookie_secret": auth_file.cookie_secret(auth),
        "client_id": auth.client_id,
        "client_secret": client_secret,
        "server_metadata_url": auth.metadata_url,
    }
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join(["[auth]", *lines, f"client_kwargs = {{ scope = {json.dumps(' '.join(auth.scopes))} }}", ""])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the state folder, made if there is none; two dashboards would turn each other's log over."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / _LOCK).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AuthError(f"state: another dashboard uses {folder}; give each one a folder of its own")
            yield
    except OSError as error:
        raise AuthError(f"state: cannot use {folder}: {error}; name a folder that this user may write")
