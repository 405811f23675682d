import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.errors import UserError
from rose.runtime.rollout.conversation import Conversation

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
messages = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": texts}), min_size=1)


@pytest.fixture(scope="module")
def conversation(chat_model):
    return Conversation(chat_model)


@settings(max_examples=50, deadline=None)
@given(opening=messages, answer=texts, reply=messages)
def test_a_conversation_reads_as_its_template_has_it(conversation, opening, answer, reply):
    ids = conversation.first_observation(opening)
    output = [*conversation._ids(answer), *conversation.stop_token_ids]
    whole = [*opening, {"role": "assistant", "content": answer}, *reply]
    grown = [*ids, *output, *conversation.reply(reply, output)]
    assert conversation._tokenizer.decode(grown) == conversation._tokenizer.decode(
        conversation.first_observation(whole)
    )


def test_a_cut_answer_is_ended_before_the_reply(conversation):
    output = conversation._ids("It is")
    reply = conversation.reply("Go on.", output)
    assert reply == [
        *conversation.stop_token_ids,
        *conversation.reply("Go on.", [*output, *conversation.stop_token_ids]),
    ]
    assert conversation.text([*output, *conversation.stop_token_ids]) == "It is"


def test_a_model_without_a_chat_template_is_refused(chat_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(chat_model, folder)
    kept = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**kept, "chat_template": None}))
    with pytest.raises(UserError, match=r"rollout\.model in .*no chat template"):
        Conversation(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"rollout\.model in "):
        Conversation(folder)
