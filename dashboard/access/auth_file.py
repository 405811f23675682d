"""The file that says who logs in where, and what they may: TOML, with no secret in it."""

from __future__ import annotations

import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from dashboard.access.roles import Role
from rose import secret_file
from rose.config_errors import explain
from rose.config_hosts import PathText, Section
from rose.errors import UserError
from rose.ledger.address import is_loopback

CALLBACK = "/oauth2callback"
_METADATA = "/.well-known/openid-configuration"
#: Streamlit signs cookies with it: 32 random bytes.
_COOKIE_SECRET = "cookie-secret"
_COOKIE_SECRET_BYTES = 32
_SECRET_FIELDS = ("client_secret", "cookie_secret")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_EVERYONE, _WRITABLE_BY_EVERYONE, _ALL_BUT_OWNER = 0o007, 0o002, 0o077


class AuthError(UserError):
    """Login that cannot be used; the message names the file, the field, the value and the way out."""


def _web_address(value: str) -> str:
    """An absolute address with nothing to hide in it, encrypted unless it is this machine's own."""
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"is no web address: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("must be a whole web address, such as https://login.example.com")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("must have no user, query or fragment")
    if parts.scheme == "http" and not is_loopback(host):
        raise ValueError("must begin with https://: cookies and tokens would travel in clear")
    return value


def _redirect(value: str) -> str:
    if not urlsplit(_web_address(value)).path.endswith(CALLBACK):
        raise ValueError(f"must end in {CALLBACK}, where the dashboard waits for the provider's answer")
    return value


_Text = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f]+$")]
_Lower = Annotated[str, StringConstraints(to_lower=True)]


class Members(Section):
    """Who has a role: whoever matches one of these."""

    emails: list[Annotated[_Lower, Field(pattern=r"^[^@\s]+@[^@\s]+$")]] = Field(default_factory=list)
    domains: list[Annotated[_Lower, Field(pattern=r"^[a-zA-Z0-9.-]+\.[a-zA-Z0-9-]+$")]] = Field(default_factory=list)
    groups: list[_Text] = Field(default_factory=list)


class Auth(Section):
    """The whole file."""

    issuer: Annotated[str, AfterValidator(_web_address)]
    client_id: _Text
    client_secret_file: PathText | None = None
    client_secret_env: str | None = None
    redirect_url: Annotated[str, AfterValidator(_redirect)]
    scopes: list[Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$")]] = Field(default=["openid", "email", "profile"])
    groups_claim: _Text = "groups"
    session_hours: Annotated[float, Field(gt=0, le=720)] = 12.0
    default_role: Role | None = None
    roles: dict[Role, Members] = Field(default_factory=dict)
    #: Folder of the cookie secret and the access log; of one dashboard alone.
    state: PathText = Path("~/.local/state/rose/dashboard")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.client_secret_file is None) == (self.client_secret_env is None):
            raise ValueError("give one of client_secret_file and client_secret_env")
        if "openid" not in self.scopes:
            raise ValueError(f"scopes: {self.scopes!r} lacks openid, without which nobody is identified")
        if self.default_role is None and not any(
            who.emails or who.domains or who.groups for who in self.roles.values()
        ):
            raise ValueError("nobody could see anything: give roles, as in [roles.finance], or a default_role")
        return self

    @property
    def metadata_url(self) -> str:
        """Where the provider describes itself."""
        return self.issuer.rstrip("/") + _METADATA

    @property
    def public_host(self) -> str:
        """The name under which people open the dashboard."""
        return urlsplit(self.redirect_url).hostname or ""

    @property
    def origin(self) -> str:
        """Scheme, host and port under which people open the dashboard."""
        parts = urlsplit(self.redirect_url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def base_path(self) -> str:
        """The path under which the dashboard lies, with no slash at its ends; empty for none."""
        return urlsplit(self.redirect_url).path.removesuffix(CALLBACK).strip("/")


def load(path: Path) -> Auth:
    """Read and validate a file; paths in it are from its own folder. Raises AuthError."""
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except OSError as error:
        raise AuthError(f"cannot read {path}: {error.strerror}; docs/dashboard-access.md shows one")
    except UnicodeDecodeError as error:
        raise AuthError(f"{path} is not UTF-8 text: {error}")
    if mode & _WRITABLE_BY_EVERYONE:
        raise AuthError(f"{path} can be changed by everybody (mode {mode & 0o777:04o}): chmod o-w {path}")
    return parse(text, path)


def parse(text: str, path: Path) -> Auth:
    """Validate the text of a file that lies at `path`. Raises AuthError; what may be a secret is never repeated."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AuthError(f"{path} is not valid TOML: {error}")
    for field in _SECRET_FIELDS:
        if field in data:
            raise AuthError(
                f"{path}: {field}: secrets have no place in this file; put the client secret into a file that only its "
                "user can read and name that in client_secret_file. The cookie secret is made by itself"
            )
    variable = data.get("client_secret_env")
    if variable is not None and not (isinstance(variable, str) and _VARIABLE.fullmatch(variable)):
        raise AuthError(
            f"{path}: client_secret_env must be the name of an environment variable, such as ROSE_OIDC_SECRET "
            "(what was given is not shown: it may be the secret)"
        )
    try:
        auth = Auth.model_validate(data)
    except ValidationError as error:
        raise AuthError(f"{path}:\n{explain(error, Auth)}")
    folder = path.absolute().parent
    file = auth.client_secret_file
    return auth.model_copy(
        update={
            "client_secret_file": None if file is None else folder / file.expanduser(),
            "state": folder / auth.state.expanduser(),
        }
    )


def client_secret(auth: Auth, environment: Mapping[str, str]) -> str:
    """The client secret, from its file or variable. Raises AuthError, also where everybody could read the file."""
    if auth.client_secret_env is not None:
        secret = environment.get(auth.client_secret_env, "").strip()
        if not secret:
            raise AuthError(f"client_secret_env: the environment has no {auth.client_secret_env}, or it is empty")
        return secret
    assert auth.client_secret_file is not None
    secret = _read("client_secret_file", auth.client_secret_file, _EVERYONE, "chmod o-rwx")
    if not secret:
        raise AuthError(f"client_secret_file: {auth.client_secret_file} is empty")
    return secret


def cookie_secret(auth: Auth) -> str:
    """What cookies are signed with: kept in the state folder, and made there the first time. Raises AuthError."""
    path = auth.state / _COOKIE_SECRET
    if not path.exists():
        try:
            secret_file.write(path, secrets.token_hex(_COOKIE_SECRET_BYTES))
        except OSError as error:
            raise AuthError(f"state: cannot write {path}: {error.strerror}")
    secret = _read("state", path, _ALL_BUT_OWNER, "chmod 600")
    if len(secret) < _COOKIE_SECRET_BYTES:
        raise AuthError(f"state: {path} is too short to sign cookies with: remove it, and a new one is made")
    return secret


def _read(field: str, path: Path, refused: int, way_out: str) -> str:
    """The text of a file whose mode has none of the bits `refused`. Raises AuthError."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthError(f"{field}: cannot read {path}: {error}")
    if mode & refused:
        raise AuthError(f"{field}: {path} is open to others (mode {mode & 0o777:04o}): {way_out} {path}")
    return text
