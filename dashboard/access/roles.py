"""What each role sees and does. Pure: roles in, pages and actions out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

Role = Literal["viewer", "finance", "infra"]
Action = Literal["download"]

_ALL: frozenset[Role] = frozenset({"viewer", "finance", "infra"})
_MONEY: frozenset[Role] = frozenset({"finance"})
_MACHINES: frozenset[Role] = frozenset({"infra", "viewer"})
_WORKING: frozenset[Role] = frozenset({"finance", "infra"})

#: Pages by their titles. A page that is not here is for nobody.
PAGES: Mapping[str, frozenset[Role]] = {
    "Overview": _ALL,
    "Cost": _ALL,
    "Cost per correct": _ALL,
    "Fleet now": _MACHINES,
    "Preemptions and sync": _MACHINES,
    "Bill": _MONEY,
    "Books": _MONEY,
    "Risk": _WORKING,
    "SQL": _WORKING,
}
ACTIONS: Mapping[Action, frozenset[Role]] = {
    "download": _WORKING,
}


def sees(roles: Collection[Role], page: str) -> bool:
    """Whether somebody with these roles may open a page; with several roles, whatever one of them may."""
    return not PAGES.get(page, frozenset()).isdisjoint(roles)


def may(roles: Collection[Role], action: Action) -> bool:
    """Whether somebody with these roles may do something on the pages that they see."""
    return not ACTIONS[action].isdisjoint(roles)


def who_sees(page: str) -> str:
    """The roles that a page is for, in words."""
    return ", ".join(sorted(PAGES.get(page, ()))) or "nobody"
