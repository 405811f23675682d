"""Login against a real provider and a real server: HTTP with cookies, and the messages of Streamlit's WebSocket."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc.jwk import RSAKey

CFO = {"email": "cfo@example.com", "email_verified": True}


def is_login(screen: Any) -> bool:
    """Whether a page shows the login and nothing else."""
    return "Log in" in screen.buttons and screen.menu == [] and "SIMULATED" not in screen.text


@pytest.mark.parametrize("page", ["", "bill", "fleet"])
def test_without_login_no_page_shows_anything(dashboard, page):
    screen = dashboard.visitor().open(page)
    assert is_login(screen)
    assert "little fleet" not in screen.text


def test_whoever_logs_in_sees_the_pages_of_their_role(dashboard):
    visitor = dashboard.visitor("1", **CFO)
    screen = visitor.open()
    assert "cfo@example.com\nfinance" in screen.text
    assert "SIMULATED" in screen.text
    assert screen.menu == ["Overview", "Cost", "Cost per correct", "Bill", "Books", "Risk", "SQL"]
    assert "Rows as CSV" in screen.downloads


@pytest.mark.long
def test_a_page_asked_for_without_its_role_says_so_and_is_logged(dashboard):
    visitor = dashboard.visitor("2", groups=["gpu-operators"])
    assert visitor.open("fleet").menu == [
        "Overview",
        "Fleet now",
        "Preemptions and sync",
        "Cost",
        "Cost per correct",
        "Risk",
        "SQL",
    ]
    screen = visitor.open("bill")
    assert "not for your role" in screen.text
    assert "finance" in screen.text
    assert "Download charges (CSV)" not in screen.downloads
    assert dashboard.log()[-1] | {"at": ""} == {
        "at": "",
        "person": "2",
        "subject": "2",
        "roles": ["infra"],
        "action": "refused",
        "page": "Bill",
        "ledger": dashboard.log()[-1]["ledger"],
        "query": {},
    }


def test_somebody_known_without_a_role_is_told_so(dashboard):
    screen = dashboard.visitor("3", email="guest@example.net", email_verified=True).open("bill")
    assert "known as guest@example.net, but you have no role here" in screen.text
    assert screen.menu == []
    assert dashboard.log()[-1]["action"] == "refused"


def test_an_address_that_is_not_verified_gives_no_role(dashboard):
    screen = dashboard.visitor("4", email="cfo@example.com", email_verified=False).open()
    assert "known as 4, but you have no role here" in screen.text


@pytest.mark.long
def test_a_download_is_logged_before_it_is_given_and_refused_to_a_viewer(dashboard):
    finance = dashboard.visitor("5", **CFO)
    content = finance.download("Download charges (CSV)", "bill")
    assert content is not None
    assert content.count(b"\n") > 3
    line = dashboard.log()[-1]
    assert (line["action"], line["page"], line["person"]) == ("download", "Bill", "cfo@example.com")
    assert line["detail"].endswith(".csv")
    viewer = dashboard.visitor("6", email="someone@example.org", email_verified=True).open()
    assert viewer.downloads == {}
    assert "Rows as CSV: your role is for looking only." in viewer.text


@pytest.mark.long
def test_the_log_has_what_was_looked_at_and_nothing_that_was_pasted(dashboard):
    dashboard.visitor("7", **CFO).open("cost_per_correct", "run=r1&token=hunter2&x%0Ay=1")
    line = dashboard.log()[-1]
    assert line["query"] == {"run": "r1", "token": "(not logged)", "x\ny": "(not logged)"}
    text = (dashboard.state / "access.jsonl").read_text()
    assert "hunter2" not in text
    assert text.count("\n") == len(dashboard.log())


@pytest.mark.parametrize(
    "lies",
    [
        {"nonce": "another"},
        {"aud": "another"},
        # What only names this client as the party that asked: Authlib takes it, the dashboard does not.
        {"aud": "another", "azp": "rose-dashboard"},
        {"iss": "https://another.example.com"},
        {"exp": int(time.time()) - 3600},
        {"iat": int(time.time()) - 13 * 3600},
        {"sub": ""},
    ],
    ids="-".join,
)
def test_a_token_that_is_not_right_lets_nobody_in(honest, lies):
    honest.provider.lies = lies
    assert is_login(honest.visitor("8", **CFO).open())


def test_a_token_signed_by_another_key_lets_nobody_in(honest):
    honest.provider.forger = RSAKey.generate_key(2048, {"kid": "one"})
    assert is_login(honest.visitor("9", **CFO).open())


def test_an_answer_with_a_state_that_nobody_asked_for_lets_nobody_in(dashboard):
    dashboard.provider.person = {"sub": "10", **CFO}
    visitor = dashboard.visitor()
    asked = visitor.http.get(visitor.click("Log in").redirect).headers["Location"]
    answer = urlsplit(visitor.http.get(asked).headers["Location"])
    code = parse_qs(answer.query)["code"][0]
    visitor.follow(f"/oauth2callback?code={code}&state=another")
    assert is_login(visitor.open())
    # The right answer in another browser is not that browser's.
    other = dashboard.visitor()
    other.follow(f"/oauth2callback?{answer.query}")
    assert is_login(other.open())


def test_a_changed_cookie_lets_nobody_in(dashboard):
    visitor = dashboard.visitor("11", **CFO)
    (cookie,) = (cookie for cookie in visitor.http.cookies.jar if cookie.name == "_streamlit_user")
    cookie.value = f"A{cookie.value[1:]}"
    assert is_login(visitor.open())


def test_a_session_of_another_origin_is_nobody_s(dashboard):
    visitor = dashboard.visitor("12", **CFO)
    port = urlsplit(dashboard.url).port
    visitor.url = f"http://localhost:{port}"
    assert is_login(visitor.open())


def test_logging_out_ends_it_here_and_at_the_provider(dashboard):
    visitor = dashboard.visitor("13", **CFO)
    redirect = visitor.click("Log out").redirect
    visitor.follow(redirect)
    assert any(path.startswith("/logout?") for path in dashboard.provider.asked)
    assert is_login(visitor.open())
    assert dashboard.log()[-1]["action"] == "logout"


def test_what_the_start_says_holds_no_secret(dashboard):
    said = dashboard.output.read_text()
    assert f"access log {dashboard.state / 'access.jsonl'}" in said
    for secret in (dashboard.state / "cookie-secret", dashboard.state.parent / "client-secret"):
        assert secret.read_text().strip() not in said
        assert secret.stat().st_mode & 0o077 == 0
    assert (dashboard.state / "access.jsonl").stat().st_mode & 0o077 == 0
    assert (dashboard.state / "streamlit-secrets.toml").stat().st_mode & 0o077 == 0


def test_a_second_dashboard_does_not_share_the_state(dashboard, capsys):
    from typer.testing import CliRunner

    from rose import cli

    auth = dashboard.state.parent / "auth.toml"
    done = CliRunner().invoke(cli.app, ["dashboard", "--auth", str(auth)])
    assert done.exit_code == 2
    assert "another dashboard uses" in done.output
