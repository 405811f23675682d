from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from streamlit import config
from typer.testing import CliRunner

from dashboard.access import auth_file, start
from dashboard.access.start import UnsafeError
from rose import cli


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "rose.example.com"])
def test_other_machines_are_not_let_in_without_login(host, ended):
    done = CliRunner().invoke(cli.app, ["dashboard", "--ledger", str(ended), "--host", host])
    assert done.exit_code == 2
    assert f"--host {host} can be reached from other machines" in done.output
    assert "--auth" in done.output


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_none(host, tmp_path):
    with start.prepared(tmp_path, host, 8501, None) as ready:
        assert f"--server.address={host}" in ready.command
        assert "--server.allowedHosts=localhost" in ready.command
        assert start.AUTH_VARIABLE not in ready.environment


def test_a_login_that_cannot_be_used_is_said_before_anything_starts(write_auth, ended):
    path = write_auth('issuer = "http://login.example.com"')
    done = CliRunner().invoke(cli.app, ["dashboard", "--ledger", str(ended), "--auth", str(path)])
    assert done.exit_code == 2
    assert "issuer" in done.output


def test_with_login_other_machines_may_come_by_the_public_name(write_auth, tmp_path):
    path = write_auth('redirect_url = "https://example.com/rose/oauth2callback"')
    with start.prepared(tmp_path / "l", "0.0.0.0", 8501, path) as ready:
        options = set(ready.command)
        assert {
            "--server.address=0.0.0.0",
            "--server.allowedHosts=example.com",
            "--server.baseUrlPath=rose",
            "--server.corsAllowedOrigins=https://example.com",
            "--client.disableDataExport=true",
        } <= options
        assert ready.environment[start.AUTH_VARIABLE] == str(path)
        assert ready.says[1] == "open https://example.com/rose/ (Ctrl-C ends it)"
        secrets = tmp_path / "state" / "streamlit-secrets.toml"
        assert secrets.stat().st_mode & 0o777 == 0o600
        auth = tomllib.loads(secrets.read_text())["auth"]
        assert auth["client_secret"] == "s3cret-of-the-client"
        assert auth["client_kwargs"] == {"scope": "openid email profile"}
        assert not any("s3cret" in text or auth["cookie_secret"] in text for text in (*ready.command, *ready.says))
    assert not secrets.exists()


def test_a_secret_of_the_environment_is_not_handed_on(write_auth, tmp_path, monkeypatch):
    path = write_auth()
    path.write_text(path.read_text().replace('client_secret_file = "client-secret"', 'client_secret_env = "SECRET"'))
    monkeypatch.setenv("SECRET", "hunter2")
    with start.prepared(tmp_path, "127.0.0.1", 8501, path) as ready:
        assert "hunter2" not in ready.environment.values()


def test_a_state_folder_that_cannot_be_is_said(write_auth, tmp_path):
    with pytest.raises(auth_file.AuthError, match="state: cannot use"):
        with start.prepared(tmp_path, "127.0.0.1", 8501, write_auth('state = "/proc/none"')):
            pass


def test_streamlit_knows_every_option(write_auth, tmp_path):
    known = config._config_options_template
    with start.prepared(tmp_path, "127.0.0.1", 8501, write_auth()) as ready:
        for option in (part for part in ready.command if part.startswith("--")):
            assert option.removeprefix("--").partition("=")[0] in known, option


def test_pages_started_by_hand_where_others_can_reach_them_refuse_too():
    with pytest.raises(UnsafeError):
        start.refuse_without_login("0.0.0.0")
    assert Path(start.APP).is_file()
