from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.access import roles
from dashboard.access.roles import ACTIONS, PAGES, Action, Role

APP = Path(__file__).parents[3] / "dashboard" / "app.py"
SETS = st.frozensets(st.sampled_from(get_args(Role)))


def pages_of_the_app() -> dict[str, bool]:
    """The title of each page, and whether the dashboard opens with it."""
    calls = [node for node in ast.walk(ast.parse(APP.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "Page"]
    keywords = [{word.arg: ast.literal_eval(word.value) for word in call.keywords} for call in made]
    return {word["title"]: word.get("default", False) for word in keywords}


def test_every_page_is_for_some_role_and_the_first_one_for_all():
    pages = pages_of_the_app()
    assert pages
    for title, first in pages.items():
        assert PAGES[title], f"say in dashboard/access/roles.py who sees {title}"
        if first:
            assert PAGES[title] == set(get_args(Role))


def test_every_action_has_its_roles():
    assert set(ACTIONS) == set(get_args(Action))


@given(some=SETS, more=SETS, page=st.sampled_from(sorted(PAGES)), action=st.sampled_from(get_args(Action)))
def test_another_role_never_takes_anything_away_and_brings_only_its_own(some, more, page, action):
    assert roles.sees(some | more, page) == (roles.sees(some, page) or roles.sees(more, page))
    assert roles.may(some | more, action) == (roles.may(some, action) or roles.may(more, action))


@given(some=SETS, page=st.text())
def test_a_page_that_nobody_was_given_is_for_nobody(some, page):
    assert roles.sees(some, page) == bool(page in PAGES and PAGES[page] & some)


@given(page=st.sampled_from(sorted(PAGES)), action=st.sampled_from(get_args(Action)))
def test_without_a_role_there_is_nothing(page, action):
    assert not roles.sees(frozenset(), page)
    assert not roles.may(frozenset(), action)


def test_a_viewer_only_looks():
    assert not any(roles.may({"viewer"}, action) for action in get_args(Action))


@pytest.mark.parametrize("role", get_args(Role))
def test_each_role_sees_a_page(role):
    assert any(roles.sees({role}, page) for page in PAGES)
