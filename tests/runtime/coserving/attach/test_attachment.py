from __future__ import annotations

from rose.runtime.coserving.attach.attachment import (
    Attachment,
    EngineState,
    describe,
    described,
    has_url,
    note_url,
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


def test_a_note_of_another_version_is_none(tmp_path):
    page = tmp_path / "page"
    for text in ("", "[]", '{"role": "serving", "pid": 1, "unheard": 1}'):
        (tmp_path / "page.serving.json").write_text(text)
        assert described(page, "serving") is None


def test_an_engine_is_known_by_where_its_url_leads(tmp_path):
    page = tmp_path / "page"
    assert not has_url(page, "http://127.0.0.1:30000", 7)
    note_url(page, "http://localhost:30000", 7)
    assert has_url(page, "http://127.0.0.1:30000", 7)
    assert has_url(page, "http://LOCALHOST:30000", 7)
    assert not has_url(page, "http://127.0.0.1:30000", 8)
    for another in ("http://127.0.0.1:30001", "http://127.0.0.2:30000", "http://127.0.0.1"):
        assert not has_url(page, another, 7)
    note_url(page, "http://localhost", 7)
    assert has_url(page, "http://127.0.0.1:80", 7)
    assert not has_url(page, "https://127.0.0.1", 7)
    for text in ("", "7", "[7]"):
        page.with_name("page.url.json").write_text(text)
        assert not has_url(page, "http://127.0.0.1:80", 7)


def test_a_state_survives_its_way_and_what_is_none_is_refused():
    state = EngineState(role="serving", pid=7, page="/p", attached=True)
    assert EngineState.from_message(state.to_message()) == state
    for message in (None, [], "x", {}, {"role": "serving"}, {**state.to_message(), "unheard": 1}):
        assert EngineState.from_message(message) is None
