from __future__ import annotations

from rose.errors import did_you_mean


def test_a_message_names_what_is_near_or_else_what_there_is() -> None:
    teams = {"chat", "research"}
    assert did_you_mean("reserch", teams) == "; did you mean 'research'?"
    assert did_you_mean("x", teams) == "; there is chat, research"
    assert did_you_mean("x", ()) == "; there is none"
    assert did_you_mean("x", [f"team-{n}" for n in range(10, 30)]).endswith("team-20, team-21 ...")
