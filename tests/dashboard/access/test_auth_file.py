from __future__ import annotations

import pytest

from dashboard.access import auth_file
from dashboard.access.auth_file import AuthError


def test_a_whole_file_is_read_with_paths_from_its_own_folder(write_auth, tmp_path):
    auth = auth_file.load(write_auth('redirect_url = "https://example.com:8443/team/rose/oauth2callback"'))
    assert auth.client_secret_file == tmp_path / "client-secret"
    assert auth.state == tmp_path / "state"
    assert auth.metadata_url == "https://login.example.com/.well-known/openid-configuration"
    assert (auth.public_host, auth.origin) == ("example.com", "https://example.com:8443")
    assert auth.base_path == "team/rose"
    assert auth.roles["finance"].emails == ["cfo@example.com"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['issuer = "http://login.example.com"'], r"issuer: must begin with https.*got 'http://login.example.com'"),
        (['issuer = "login.example.com"'], "issuer: must be a whole web address"),
        (['issuer = "https://a.example.com?x=1"'], "issuer: must have no user, query or fragment"),
        (['issuer = "https://a.example.com:port"'], "issuer: is no web address"),
        (['redirect_url = "https://rose.example.com/"'], "redirect_url: must end in /oauth2callback"),
        (['redirect_url = "http://rose.example.com/oauth2callback"'], "redirect_url: must begin with https"),
        (['client_id = ""'], "client_id"),
        (["session_hours = 0"], "session_hours.*got 0"),
        (['scopes = ["email"]'], "lacks openid"),
        (['scopes = ["openid email"]'], "scopes.0"),
        (['colour = "red"'], "colour: no such field; there is cli.*"),
        (['isuer = "red"'], "isuer: no such field; did you mean 'issuer'?"),
        (['[roles.finance]\nemail = ["a@example.com"]'], "roles.finance.email: no such field; did you mean 'emails'?"),
        (['default_role = "boss"'], "default_role.*got 'boss'"),
        (['client_secret_env = "SECRET"'], "give one of client_secret_file and client_secret_env"),
        (['[roles.boss]\nemails = ["a@example.com"]'], "roles.boss"),
        (["[roles.finance]\nemails = []"], "nobody could see anything"),
        (['[roles.finance]\nemails = ["everybody"]'], "roles.finance.emails.0.*got 'everybody'"),
        (['[roles.finance]\ndomains = ["@example.com"]'], "roles.finance.domains.0"),
        (["[roles.finance"], "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_field_and_value(write_auth, lines, message):
    with pytest.raises(AuthError, match=message):
        auth_file.load(write_auth(*lines))


@pytest.mark.parametrize("field", ["client_secret", "cookie_secret", "client_secret_env"])
def test_a_secret_in_the_file_is_refused_and_not_repeated(write_auth, field):
    with pytest.raises(AuthError, match=field) as caught:
        auth_file.load(write_auth(f'{field} = "hunter2-and-more"'))
    assert "hunter2" not in str(caught.value)


def test_a_password_in_a_web_address_is_refused_and_not_repeated(write_auth):
    with pytest.raises(AuthError, match=r"issuer: must have no user.*'https://\.\.\.@a.example.com'") as caught:
        auth_file.load(write_auth('issuer = "https://me:hunter2@a.example.com"'))
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_there_or_that_everybody_can_change_is_refused(write_auth, tmp_path):
    with pytest.raises(AuthError, match=r"cannot read .*none.toml"):
        auth_file.load(tmp_path / "none.toml")
    path = write_auth()
    path.chmod(0o666)
    with pytest.raises(AuthError, match=r"can be changed by everybody \(mode 0666\)"):
        auth_file.load(path)


def test_the_client_secret_comes_from_a_file_that_is_not_for_everybody(write_auth, tmp_path):
    auth = auth_file.load(write_auth())
    assert auth_file.client_secret(auth, {}) == "s3cret-of-the-client"
    file = tmp_path / "client-secret"
    file.chmod(0o644)
    with pytest.raises(
        AuthError, match=r"client_secret_file: .* is open to others \(mode 0644\): chmod o-rwx"
    ) as caught:
        auth_file.client_secret(auth, {})
    assert "s3cret" not in str(caught.value)
    file.chmod(0o600)
    file.write_text(" \n")
    with pytest.raises(AuthError, match="is empty"):
        auth_file.client_secret(auth, {})
    file.unlink()
    with pytest.raises(AuthError, match="cannot read"):
        auth_file.client_secret(auth, {})


def test_or_from_the_environment(write_auth):
    text = write_auth().read_text().replace('client_secret_file = "client-secret"', 'client_secret_env = "SECRET"')
    path = write_auth()
    path.write_text(text)
    auth = auth_file.load(path)
    assert auth_file.client_secret(auth, {"SECRET": "abc"}) == "abc"
    with pytest.raises(AuthError, match="the environment has no SECRET"):
        auth_file.client_secret(auth, {})


def test_the_cookie_secret_is_made_once_for_its_user_alone(write_auth, tmp_path):
    auth = auth_file.load(write_auth())
    auth.state.mkdir()
    secret = auth_file.cookie_secret(auth)
    assert len(secret) >= 32
    assert auth_file.cookie_secret(auth) == secret
    file = tmp_path / "state" / "cookie-secret"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(AuthError, match=r"is open to others \(mode 0640\)"):
        auth_file.cookie_secret(auth)
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(AuthError, match="too short"):
        auth_file.cookie_secret(auth)
