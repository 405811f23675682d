"""Login against a real provider and a real server."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc.jwk import RSAKey
from streamlit import config
from typer.testing import CliRunner

from benchmarks.dashboard.visitor import Visitor
from dashboard import login
from dashboard.login import LoginError
from rose import cli
from rose.runtime.engines.ports import free_port
from tests.dashboard import browser
from tests.dashboard import provider as oidc
from tests.ledger.conftest import ask

CFO = {"email": "cfo@example.com", "email_verified": True}
LINES = {
    "redirect_uri": '"https://rose.example.com/oauth2callback"',
    "cookie_secret": '"0123456789abcdef0123456789abcdef"',
    "client_id": '"rose"',
    "client_secret": '"s3cret-of-the-client"',
    "server_metadata_url": '"https://login.example.com/.well-known/openid-configuration"',
}


def write(path: Path, allow: str = '["Cfo@example.com", "@example.org", "operator"]', **changes: str) -> Path:
    """A valid login file with changes. An empty value leaves a field out."""
    lines = [f"{name} = {value}" for name, value in (LINES | changes).items() if value]
    path.write_text("\n".join([f"allow = {allow}", "[auth]", *lines]) + "\n", encoding="utf-8")
    path.chmod(0o600)
    return path


@dataclass
class Dashboard:
    url: str
    provider: Any
    file: Path
    ledger: Path
    output: Path

    def visitor(self, subject: str | None = None, **claims: Any) -> Visitor:
        visitor = Visitor(self.url)
        if subject is not None:
            self.provider.person = {"sub": subject, **claims}
            visitor.log_in()
        return visitor


@pytest.fixture(scope="module")
def served(ended: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder, port = tmp_path_factory.mktemp("login"), free_port()
    ledger = shutil.copytree(ended, folder / "ledger")
    url = f"http://127.0.0.1:{port}"
    with oidc.running() as provider:
        file = write(
            folder / "secrets.toml",
            redirect_uri=f'"{url}/oauth2callback"',
            client_id=f'"{oidc.CLIENT_ID}"',
            client_secret=f"'{oidc.CLIENT_SECRET}'",
            server_metadata_url=f'"{provider.issuer}/.well-known/openid-configuration"',
        )
        with browser.served(ledger, folder, port, ROSE_DASHBOARD_AUTH=str(file), ROSE_LOG_ACCESS="exports"):
            yield Dashboard(url, provider, file, ledger, folder / "server.log")


@pytest.fixture
def honest(served: Dashboard) -> Iterator[Dashboard]:
    yield served
    served.provider.lies, served.provider.forger = {}, None


def is_login(screen: Any) -> bool:
    return "Log in" in screen.buttons and screen.menu == [] and "SIMULATED" not in screen.text


def test_without_login_no_page_shows_anything(served: Dashboard) -> None:
    for page in ("", "books"):
        screen = served.visitor().open(page)
        assert is_login(screen)
        assert "little fleet" not in screen.text


@pytest.mark.long
def test_somebody_on_the_list_sees_every_page_and_takes_files_that_are_logged(served: Dashboard) -> None:
    visitor = served.visitor("1", **CFO)
    screen = visitor.open("books")
    assert "cfo@example.com" in screen.text
    assert "SIMULATED" in screen.text
    assert len(screen.menu) == 9
    focus = visitor.download("FOCUS, CSV", "books")
    assert focus is not None
    assert focus.count(b"\n") > 3
    page = visitor.download("Cost by team, HTML", "books")
    assert page is not None
    assert b"research" in page
    rows = ask(served.ledger, "SELECT who, action, statement FROM access ORDER BY seq")
    assert [row[:2] for row in rows] == [("cfo@example.com", "export")] * 2
    assert rows[0][2].endswith("-focus.csv")


@pytest.mark.parametrize(
    "claims",
    [
        {"email": "guest@example.net", "email_verified": True},
        {"email": "cfo@example.com", "email_verified": False},
        {"email": "cfo@example.com"},
        {"email": "x@sub.example.org", "email_verified": True},
    ],
)
def test_somebody_who_is_not_on_the_list_sees_nothing(claims: dict[str, Any], served: Dashboard) -> None:
    screen = served.visitor("4", **claims).open("books")
    assert "not on the list" in screen.text
    assert is_login(screen)


def test_whoever_is_taken_off_the_list_sees_nothing_more(served: Dashboard) -> None:
    visitor, text = served.visitor("operator"), served.file.read_text()
    assert visitor.open("trust").menu
    try:
        served.file.write_text(text.replace('"operator"', '"somebody"'))
        assert is_login(visitor.open("trust"))
    finally:
        served.file.write_text(text)


@pytest.mark.parametrize(
    "lies",
    [
        {"nonce": "another"},
        {"aud": "another"},
        # What only names this client as the party that asked: Authlib takes it, the dashboard does not.
        {"aud": "another", "azp": "rose-dashboard"},
        {"iss": "https://another.example.com"},
        {"exp": int(time.time()) - 3600},
        {"sub": ""},
        {},
    ],
    ids="-".join,
)
def test_a_token_that_is_not_right_lets_nobody_in(honest: Dashboard, lies: dict[str, Any]) -> None:
    honest.provider.lies = lies
    if not lies:  # Right but for the key that signs it.
        honest.provider.forger = RSAKey.generate_key(2048, {"kid": "one"})
    assert is_login(honest.visitor("8", **CFO).open("trust"))


def test_an_answer_with_a_state_that_nobody_asked_for_lets_nobody_in(served: Dashboard) -> None:
    served.provider.person = {"sub": "10", **CFO}
    visitor = served.visitor()
    address = visitor.http.get(visitor.click("Log in").redirect).headers["Location"]
    answer = urlsplit(visitor.http.get(address).headers["Location"])
    code = parse_qs(answer.query)["code"][0]
    visitor.follow(f"/oauth2callback?code={code}&state=another")
    assert is_login(visitor.open("trust"))
    # The right answer in another browser is not that browser's.
    other = served.visitor()
    other.follow(f"/oauth2callback?{answer.query}")
    assert is_login(other.open("trust"))


def test_a_changed_cookie_and_another_origin_let_nobody_in(served: Dashboard) -> None:
    visitor = served.visitor("11", **CFO)
    visitor.url = f"http://localhost:{urlsplit(served.url).port}"
    assert is_login(visitor.open("trust"))
    visitor.url = served.url
    (cookie,) = (cookie for cookie in visitor.http.cookies.jar if cookie.name == "_streamlit_user")
    cookie.value = f"A{(cookie.value or '')[1:]}"
    assert is_login(visitor.open("trust"))


def test_logging_out_ends_it_here_and_at_the_provider(served: Dashboard) -> None:
    visitor = served.visitor("13", **CFO)
    visitor.follow(visitor.click("Log out", "trust").redirect)
    assert any(path.startswith("/logout?") for path in served.provider.asked)
    assert is_login(visitor.open("trust"))


def test_what_the_start_says_holds_no_secret(served: Dashboard) -> None:
    text = served.output.read_text()
    assert f"open {served.url}/" in text
    assert not [secret for secret in (oidc.CLIENT_SECRET, "0123456789abcdef") if secret in text]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "rose.example.com"])
def test_other_machines_are_not_let_in_without_login(host: str, ended: Path) -> None:
    done = CliRunner().invoke(cli.app, ["dashboard", "--ledger", str(ended), "--host", host])
    assert done.exit_code == 2
    assert host in done.output
    assert "--auth" in done.output
    # However Streamlit was started.
    with pytest.raises(LoginError, match=r"--host"):
        login.refuse_without_login(host)


def test_this_machine_needs_none(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        ready = login.start(tmp_path, host, 8501, None)
        assert {f"--server.address={host}", "--server.allowedHosts=localhost"} <= set(ready.command)
        assert login.VARIABLE not in ready.environment
    assert Path(login.APP).is_file()


def test_with_login_other_machines_may_come_by_the_public_name(tmp_path: Path) -> None:
    path = write(tmp_path / "secrets.toml", redirect_uri='"https://example.com/rose/oauth2callback"')
    ready = login.start(tmp_path / "l", "0.0.0.0", 8501, path)
    assert {
        "--server.address=0.0.0.0",
        "--server.allowedHosts=example.com",
        "--server.baseUrlPath=rose",
        "--server.corsAllowedOrigins=https://example.com",
        "--client.disableDataExport=true",
        f"--secrets.files={path}",
    } <= set(ready.command)
    assert ready.environment[login.VARIABLE] == str(path)
    assert "open https://example.com/rose/ (Ctrl-C ends it)" in ready.says
    for option in (part for part in ready.command if part.startswith("--")):
        assert option.removeprefix("--").partition("=")[0] in config._config_options_template, option
    assert not any("s3cret" in text for text in (*ready.command, *ready.says))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda path: write(path, redirect_uri='"https://rose.example.com/other"'), "redirect_uri"),
        (lambda path: write(path, redirect_uri='"http://rose.example.com/oauth2callback"'), "redirect_uri"),
        (lambda path: write(path, server_metadata_url='"http://login.example.com"'), "server_metadata_url"),
        (lambda path: write(path, cookie_secret='"short s3cret"'), "cookie_secret"),
        (lambda path: write(path, client_secret=""), "client_secret"),
        (lambda path: write(path, allow="[]"), "allow"),
        (lambda path: write(path, roles='"s3cret"').write_text("[["), "TOML"),
        (lambda path: write(path).chmod(0o644), "0644"),
        (lambda path: path, "cannot read"),
    ],
)
def test_a_login_file_that_cannot_be_used_is_refused_and_no_secret_shown(
    change: Callable[[Path], object], field: str, tmp_path: Path, ended: Path
) -> None:
    path = tmp_path / "secrets.toml"
    change(path)
    done = CliRunner().invoke(cli.app, ["dashboard", "--ledger", str(ended), "--auth", str(path)])
    assert done.exit_code == 2
    assert field in done.output
    assert "secrets.toml" in done.output
    assert "s3cret" not in done.output


def test_the_list_has_addresses_domains_subjects_and_everyone(tmp_path: Path) -> None:
    path = tmp_path / "secrets.toml"

    def name(allow: str, **claims: object) -> str | None:
        return login.load(write(path, allow)).name_of({"aud": "rose", "sub": "s", **claims})

    assert name('["A@b.c"]', email="a@B.c", email_verified=True) == "a@b.c"
    assert name('["@B.c"]', email="a@b.c", email_verified=True) == "a@b.c"
    assert name('["s"]') == "s"
    assert name('["*"]') == "s"
    assert name('["*"]', aud=["other"]) is None
    assert name('["*"]', aud=["other", "rose"]) == "s"
    assert name('["@b.c"]', email="a@b.c", email_verified="true") is None
