"""Who somebody is, and which roles they have, by what the provider claims of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dashboard.access import roles
from dashboard.access.auth_file import Auth
from dashboard.access.roles import Action, Role
from rose.errors import UserError

#: By how much the provider's clock may be ahead.
_AHEAD_S = 120


class LoginError(UserError):
    """A login that does not count, or no longer: whoever it is of has to log in again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """Somebody who logged in. `email` is None unless the provider says that it is verified."""

    subject: str
    email: str | None
    roles: frozenset[Role]

    @property
    def name(self) -> str:
        """By what screens and the log call them."""
        return self.email or self.subject


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whoever looks at a page: a person, or, where there is no login, anybody who reaches this machine."""

    person: Person | None

    def sees(self, page: str) -> bool:
        """Whether they may open a page, by its title."""
        return self.person is None or roles.sees(self.person.roles, page)

    def may(self, action: Action) -> bool:
        """Whether they may do something on the pages that they see."""
        return self.person is None or roles.may(self.person.roles, action)


def identify(claims: Mapping[str, object], auth: Auth, now_s: float) -> Person:
    """The person that an ID token is of, at `now_s` seconds since the epoch.

    Its signature, nonce and expiry were checked when it was received. Raises LoginError if another provider issued it,
    if it was issued to another application, or if it is older than a session may be.
    """
    audience = claims.get("aud")
    if claims.get("iss") != auth.issuer or auth.client_id not in (
        audience if isinstance(audience, list) else [audience]
    ):
        raise LoginError("This login is not of this dashboard. Log in again.")
    issued_s, subject = claims.get("iat"), claims.get("sub")
    if not isinstance(issued_s, int | float) or not isinstance(subject, str) or not subject:
        raise LoginError("This login does not say who you are, or since when. Log in again.")
    if not now_s - auth.session_hours * 3600 < issued_s < now_s + _AHEAD_S:
        raise LoginError(f"You logged in more than {auth.session_hours:g} hours ago. Log in again.")
    email = claims.get("email")
    verified = email.lower() if isinstance(email, str) and claims.get("email_verified") is True else None
    groups = claims.get(auth.groups_claim)
    return Person(
        subject=subject,
        email=verified,
        roles=roles_of(auth, verified, [groups] if isinstance(groups, str) else groups),
    )


def roles_of(auth: Auth, email: str | None, groups: object) -> frozenset[Role]:
    """All roles that a verified address, its domain or a group gives; the default role where none does."""
    domain = email.rpartition("@")[2] if email else None
    member = {group for group in groups if isinstance(group, str)} if isinstance(groups, list) else set()
    given = frozenset(
        role
        for role, who in auth.roles.items()
        if email in who.emails or domain in who.domains or not member.isdisjoint(who.groups)
    )
    return given or frozenset({auth.default_role} if auth.default_role else ())
