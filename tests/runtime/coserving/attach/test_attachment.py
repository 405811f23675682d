from __future__ import annotations

from rose.runtime.coserving.attach.attachment import (
    Attachment,
    EngineState,
    describe,
    described,
)


def test_what_an_engine_says_beside_its_page_is_read_back_by_role(tmp_path):
    page = tmp_path / "page"
    assert described(page, "serving") is None
    serving = Attachment(role="serving", pid=7, model="m", kv_tokens=10, refused="for a reason")
    describe(page, serving)
    describe(page, Attachment(role="rollout", pid=8))
    assert described(page, "serving") == serving
    assert described(page, "rollout").pid == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.rollout.json", "page.serving.json"]


def test_a_state_survives_its_way_and_what_is_none_is_refused():
    state = EngineState(role="serving", pid=7, page="/p", attached=True)
    assert EngineState.from_message(state.to_message()) == state
    for message in (None, [], "x", {}, {"role": "serving"}, {**state.to_message(), "unheard": 1}):
        assert EngineState.from_message(message) is None
