import pytest

from rose.runtime.coserving.questions import TAKEN, parse_question, question, refusal


def answer(message):
    return {"meta_info": {"finish_reason": {"type": "abort", "message": message}}}


@pytest.mark.parametrize("verb", ["prepare", "commit", "audit", "confirm"])
def test_a_question_is_known_by_its_id_alone(verb):
    body = question(verb, 12)
    assert parse_question(body["rid"]) == (verb, "12")
    assert parse_question(f"{body['rid']}#005534f2") == (verb, "12"), "as SGLang's embedded server passes it on"
    assert body["rid"] != question(verb, 12)["rid"], "two of them are two requests"


@pytest.mark.parametrize(
    "rid", ["", "r1", "rose-prepare-1", "rose-delete-1-" + "0" * 32, "x" + "rose-audit-1-" + "0" * 32]
)
def test_a_request_is_no_question(rid):
    assert parse_question(rid) is None


def test_an_answer_says_whether_it_was_taken():
    assert refusal(answer(TAKEN)) is None
    assert refusal(answer("no audit now")) == "no audit now"
    for other in ({"output_ids": [5], "meta_info": {"finish_reason": None}}, None, {"error": "x"}):
        assert "as if it had no plugin" in refusal(other)
