from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.access import auth_file
from dashboard.access.people import LoginError, Visitor, identify

NOW_S = 1_800_000_000.0
TEXT = """
issuer = "https://login.example.com"
client_id = "rose"
client_secret_env = "SECRET"
redirect_url = "https://rose.example.com/oauth2callback"
session_hours = 8

[roles.finance]
emails = ["CFO@Example.com"]
groups = ["controllers"]

[roles.infra]
groups = ["controllers", "board"]

[roles.viewer]
domains = ["Example.org"]
"""
AUTH = auth_file.parse(TEXT, Path("auth.toml"))
CLAIMS = {"iss": "https://login.example.com", "aud": "rose", "sub": "1", "iat": NOW_S - 60}
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=4)


@pytest.mark.parametrize(
    ("claims", "given"),
    [
        ({"email": "cfo@example.COM", "email_verified": True}, {"finance"}),
        ({"email": "cfo@example.com"}, set()),
        ({"email": "cfo@example.com", "email_verified": "true"}, set()),
        ({"email": "a@example.org", "email_verified": True}, {"viewer"}),
        ({"email": "a@sub.example.org", "email_verified": True}, set()),
        ({"email": "a@notexample.org", "email_verified": True}, set()),
        ({"groups": ["controllers", 7, None]}, {"finance", "infra"}),
        ({"groups": "board"}, {"infra"}),
        ({"groups": {"board": True}}, set()),
        ({"email": "a@example.org", "email_verified": True, "groups": ["board"]}, {"viewer", "infra"}),
    ],
)
def test_roles_come_from_a_verified_address_its_domain_and_groups(claims, given):
    assert identify(CLAIMS | claims, AUTH, NOW_S).roles == given


def test_a_default_role_is_for_whoever_has_no_other():
    auth = auth_file.parse('default_role = "viewer"\n' + TEXT, Path("auth.toml"))
    assert identify(CLAIMS, auth, NOW_S).roles == {"viewer"}
    assert identify(CLAIMS | {"groups": ["board"]}, auth, NOW_S).roles == {"infra"}


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://login.example.com/"},
        {"iss": None},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": None},
        {"sub": ""},
        {"sub": 1},
        {"iat": NOW_S - 8 * 3600},
        {"iat": NOW_S + 600},
        {"iat": "yesterday"},
    ],
    ids=str,
)
def test_a_login_of_elsewhere_of_nobody_or_of_long_ago_does_not_count(claims):
    with pytest.raises(LoginError, match="Log in again"):
        identify(CLAIMS | claims, AUTH, NOW_S)


def test_a_token_for_several_applications_counts_if_this_is_one():
    assert identify(CLAIMS | {"aud": ["other", "rose"]}, AUTH, NOW_S).subject == "1"


@pytest.mark.long
@given(claims=st.dictionaries(st.sampled_from([*CLAIMS, "email", "email_verified", "groups"]), JSON))
def test_no_claims_whatever_are_taken_for_a_login_that_they_are_not(claims):
    try:
        person = identify(claims, AUTH, NOW_S)
    except LoginError:
        return
    assert claims["iss"] == AUTH.issuer
    assert person.subject == claims["sub"]


def test_without_login_a_visitor_sees_and_does_all():
    anybody = Visitor(None)
    assert anybody.sees("Bill")
    assert anybody.may("download")
