"""What each role sees, by AppTest: the pages run as they are, and the claims stand where a browser's cookie would."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.access import session, start

APP = Path(__file__).parents[3] / "dashboard" / "app.py"


@pytest.fixture
def open_as(monkeypatch, ended, write_auth, tmp_path):
    """Opens a page as somebody of these groups; None: of nobody yet."""
    groups = ("viewer", "finance", "infra")
    path = write_auth(*(f'[roles.{name}]\ngroups = ["{name}"]' for name in groups))
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("ROSE_LEDGER", str(ended))
    monkeypatch.setenv(start.AUTH_VARIABLE, str(path))

    def open_(page: str, given: list[str] | None, **claims: Any) -> AppTest:
        app = AppTest.from_file(APP, default_timeout=200)
        app.user = {"is_logged_in": given is not None}
        if given is not None:
            known = {"iss": "https://login.example.com", "aud": "rose", "sub": "x", "iat": time.time()}
            app.user |= known | {"groups": given} | claims
        return app.switch_page(f"screens/{page}.py").run()

    return open_


def words(app: AppTest) -> str:
    return "\n".join(str(text.value) for text in app.text)


@pytest.mark.parametrize(
    ("role", "page", "allowed"),
    [
        ("viewer", "fleet", True),
        ("viewer", "bill", False),
        ("finance", "books", True),
        ("infra", "books", False),
        ("finance", "risk", True),
    ],
)
def test_a_role_sees_its_pages_and_is_told_of_others(open_as, tmp_path, role, page, allowed):
    app = open_as(page, [role])
    assert not app.exception
    assert ("This page is not for your role" in words(app)) != allowed
    assert (len(app.caption) > 0) == allowed
    line = json.loads((tmp_path / "state" / "access.jsonl").read_text().splitlines()[-1])
    assert (line["action"], line["roles"]) == ("page" if allowed else "refused", [role])


def test_a_viewer_takes_nothing_along(open_as):
    assert [button.label for button in open_as("cost", ["finance"]).get("download_button")]
    assert not open_as("cost", ["viewer"]).get("download_button")


@pytest.mark.parametrize("claims", [{"iat": 0}, {"aud": "other"}, {"iss": "https://other.example.com"}], ids=str)
def test_a_login_that_does_not_count_is_asked_for_again(open_as, claims):
    app = open_as("cost", ["finance"], **claims)
    assert [button.label for button in app.button] == ["Log in"]
    assert "Log in again" in words(app)
    assert not app.caption


def test_nobody_and_somebody_without_a_role_see_nothing(open_as):
    assert [button.label for button in open_as("bill", None).button] == ["Log in"]
    app = open_as("bill", [])
    assert "known as x, but you have no role here" in words(app)
    assert not app.caption


def test_a_page_that_cannot_be_logged_is_not_shown(open_as, tmp_path):
    (tmp_path / "state" / "access.jsonl").symlink_to("/dev/full")
    app = open_as("cost_per_correct", ["finance"])
    assert "access log cannot be written" in words(app)
    assert not app.caption


def test_without_login_it_is_said_that_there_is_none(open_page, ended, monkeypatch):
    monkeypatch.delenv(start.AUTH_VARIABLE, raising=False)
    app = open_page(ended)
    assert session.NO_LOGIN in [caption.value for caption in app.sidebar.caption]
