"""Admits only users of this machine, or people listed in `secrets.toml` who log in with OpenID Connect."""

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import streamlit as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from streamlit.navigation.page import StreamlitPage

from rose import private_files
from rose.errors import UserError
from rose.ledger.address import is_loopback

VARIABLE = "ROSE_DASHBOARD_AUTH"
APP = Path(__file__).with_name("app.py")
CALLBACK = "/oauth2callback"
NO_LOGIN = "No login: every user of this machine sees all pages."
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EVERYONE = "*"
_EVERYBODY = 0o007
_Secret = Annotated[str, Field(min_length=private_files.TOKEN_CHARACTERS_MIN)]
_CHECK_S = 60  # Seconds between checks of an open page's login.


class LoginError(UserError):
    """The login file is missing or unusable, or a visitor has no access."""


def _web_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a complete web address, such as https://login.example.com")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("must begin with https://: without TLS, cookies and tokens are readable")
    return value


def _lower_address(entry: str) -> str:
    return entry.lower() if "@" in entry else entry


def _callback(value: str) -> str:
    if not urlsplit(_web_address(value)).path.endswith(CALLBACK):
        raise ValueError(f"must end in {CALLBACK}, where the dashboard waits for the provider's answer")
    return value


class Auth(BaseModel):
    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    redirect_uri: Annotated[str, AfterValidator(_callback)]
    cookie_secret: Annotated[str, Field(min_length=32)]
    client_id: Annotated[str, Field(min_length=1)]
    client_secret: _Secret
    server_metadata_url: Annotated[str, AfterValidator(_web_address)]

    @property
    def public_url(self) -> str:
        return self.redirect_uri.removesuffix(CALLBACK)


class Login(BaseModel):
    """A login file. `allow` lists verified e-mail addresses, `@domain`s and subjects, or `*` for everyone."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    auth: Auth
    allow: list[Annotated[str, Field(min_length=1), AfterValidator(_lower_address)]] = Field(min_length=1)

    def name_of(self, claims: Mapping[str, object]) -> str | None:
        """Return a person's verified e-mail address, or else the subject. Return None if the person has no access."""
        audience = claims.get("aud")
        if self.auth.client_id not in (audience if isinstance(audience, list) else [audience]):
            return None
        subject, email = claims.get("sub"), claims.get("email")
        if not isinstance(subject, str) or not subject:
            return None
        keys = {_EVERYONE, subject}
        if isinstance(email, str) and claims.get("email_verified") is True:
            email = email.lower()
            keys |= {email, f"@{email.rpartition('@')[2]}"}
            subject = email
        return None if keys.isdisjoint(self.allow) else subject


def load(path: Path) -> Login:
    """Read a login file. Raises LoginError, whose message never contains a secret."""
    try:
        if (mode := path.stat().st_mode) & _EVERYBODY:  # The group may read: systemd gives credentials mode 0440.
            raise LoginError(
                f"{path} contains secrets, and every user may open it (mode {mode & 0o777:04o}): chmod 600 {path}"
            )
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoginError(f"cannot read {path}: {error.strerror}; docs/dashboard.md shows a login file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LoginError(f"{path} is not valid TOML: {error}") from error
    try:
        return Login.model_validate(content)
    except ValidationError as error:
        # Never the value: it may be a secret.
        lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_input=False)]
        raise LoginError(f"{path}: {'; '.join(lines)}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    command: list[str]
    environment: dict[str, str]
    says: list[str]


def start(ledger: Path, host: str, port: int, path: Path | None) -> Start:
    """Return how to start the dashboard of `ledger`. Raises LoginError if others could connect without a login."""
    environment = {**os.environ, "ROSE_LEDGER": str(ledger)}
    if path is None:
        refuse_without_login(host)
        environment.pop(VARIABLE, None)
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        options, says = [], []
        names = [*_LOOPBACK, host]
    else:
        auth = load(path).auth
        environment[VARIABLE] = str(path.absolute())
        public = urlsplit(auth.public_url)
        address, says = f"{auth.public_url}/", [f"login by {urlsplit(auth.server_metadata_url).hostname}"]
        names = [public.hostname or "", host, *_LOOPBACK]
        options = [
            f"--secrets.files={path.absolute()}",
            f"--server.corsAllowedOrigins={public.scheme}://{public.netloc}",
            f"--server.baseUrlPath={public.path.strip('/')}",
            f"--browser.serverAddress={public.hostname}",
            "--client.disableDataExport=true",  # Downloads go through our own buttons, which the access log records.
        ]
    options += [  # Set every option that matters: no file or variable of Streamlit may change it.
        *(f"--server.allowedHosts={name}" for name in dict.fromkeys(names)),
        f"--server.address={host}",
        f"--server.port={port}",
        "--server.headless=true",
        "--server.enableCORS=true",
        "--server.enableXsrfProtection=true",
        "--server.enableStaticServing=false",
        "--server.enableAgentApi=false",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
    ]
    return Start(
        command=[sys.executable, "-m", "streamlit", "run", str(APP), *options],
        environment=environment,
        says=[f"ledger {ledger}", f"open {address} (Ctrl-C ends it)", *says],
    )


def refuse_without_login(host: str) -> None:
    """Raise LoginError if other machines can reach `host`."""
    if not is_loopback(host):
        raise LoginError(
            f"--host {host} is reachable from other machines, without a login: name a login file with --auth "
            "(docs/dashboard.md shows one), or omit --host"
        )


def person() -> str | None:
    """Return the visitor's name, or None if no login is needed. Raises LoginError if the visitor has no access."""
    path = os.environ.get(VARIABLE)
    if path is None:
        refuse_without_login(st.get_option("server.address") or "localhost")  # Also when Streamlit was started by hand.
        return None
    login, claims = load(Path(path)), dict(st.user.to_dict())  # Read each time: a person off the list loses access.
    if claims.get("is_logged_in") is not True:
        raise LoginError("Log in to see this dashboard.")
    name = login.name_of(claims)
    if name is None:
        raise LoginError("You are not on the list of this dashboard. Ask its administrator.")
    return name


def navigation(pages: list[StreamlitPage]) -> StreamlitPage:
    """Return the chosen page. Without access, show the reason and stop."""
    try:
        name = person()
    except LoginError as error:
        _refuse(pages, error)
    page = st.navigation(pages)
    if name is None:
        st.sidebar.caption(NO_LOGIN)
        return page
    with st.sidebar:
        st.text(name)
        st.button("Log out", on_click=st.logout)
    _watch()
    return page


def _refuse(pages: list[StreamlitPage], error: LoginError) -> None:
    def show() -> None:
        st.title("ROSE")
        st.text(str(error))
        left, right, _ = st.columns([1, 1, 6])
        left.button("Log in", on_click=st.login, type="primary")
        if st.user.to_dict().get("is_logged_in") is True:
            right.button("Log out", on_click=st.logout)

    hidden = [
        st.Page(show, title="ROSE", url_path=page.url_path or "start", default=not page.url_path, visibility="hidden")
        for page in pages
    ]
    st.navigation(hidden, position="hidden").run()
    st.stop()


@st.fragment(run_every=_CHECK_S)
def _watch() -> None:
    try:
        person()
    except LoginError:
        st.rerun()
