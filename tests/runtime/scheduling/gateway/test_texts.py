import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rose.runtime.scheduling.gateway.openai import settled
from rose.runtime.scheduling.gateway.texts import GrowingText, Texts, tool_calls
from rose.runtime.scheduling.refusals import RequestError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(ALPHABET)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    texts = Texts("letters", lambda: folder)
    texts._load()
    return texts


@given(text=st.text(max_size=12))
def test_a_growing_text_ends_as_the_whole_and_never_takes_a_character_back(letters, text):
    ids = letters._tokenizer.encode(text)
    growing, told = GrowingText(letters, special=False), [""]
    for count in range(1, len(ids) + 1):
        told.append(growing.after(ids[:count]))
        assert told[-1].startswith(told[-2])
    assert told[-1] == letters.decode(ids)


@given(text=st.text("ab<é", max_size=12), keep=st.booleans(), special=st.booleans(), more=st.data())
def test_the_end_of_a_growing_text_is_that_of_the_whole_and_decodes_only_the_last_tokens(
    letters, text, keep, special, more
):
    ids = letters._tokenizer.encode(text)
    matched = more.draw(st.sampled_from([None, "<", "b<", ids[-1] if ids else None, ALPHABET.index("a")]))
    finish, growing = {"type": "stop", "matched": matched}, GrowingText(letters, special=special)
    for count in range(1, len(ids)):
        growing.after(ids[:count])
    whole = GrowingText(letters, special=special).finished(ids, finish, keep_stop=keep)
    assert growing.finished(ids, finish, keep_stop=keep) == whole


def test_the_end_of_a_long_stream_does_not_decode_it_once_more(letters):
    lengths = []
    counting = Texts("letters", lambda: None)
    counting.decode = lambda ids, *, special=False: lengths.append(len(ids)) or letters.decode(ids, special=special)
    ids, growing = letters._tokenizer.encode("ab" * 500), GrowingText(counting, special=False)
    for count in range(1, len(ids)):
        growing.after(ids[:count])
    assert growing.finished(ids, {"type": "length"}, keep_stop=False) == "ab" * 500
    assert max(lengths) < 10


@given(text=st.text("ab<", max_size=12), waits=st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3))
def test_what_is_told_of_a_text_holds_no_beginning_of_what_it_waits_for(text, waits):
    told = settled(text, waits)
    rest = text[len(told) :]
    assert text.startswith(told)
    assert not rest or any(one.startswith(rest) for one in waits)
    assert not any(told == text and told.endswith(one[:length]) for one in waits for length in range(1, len(one)))


@pytest.mark.parametrize(
    ("text", "left", "names"),
    [
        ("a", "a", []),
        ('<tool_call>{"name": "f"}</tool_call>', "", ["f"]),
        ('x <tool_call>\n{"name": "f", "arguments": {"a": {"b": 1}}}\n</tool_call>', "x", ["f"]),
        ('<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>', "", ["f", "g"]),
        ("<tool_call>{nonsense}</tool_call>", "<tool_call>{nonsense}</tool_call>", []),
        ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
        ('<tool_call>{"name": "f"}', '<tool_call>{"name": "f"}', []),
    ],
)
def test_what_is_a_tool_call_and_what_is_text(text, left, names):
    found, calls = tool_calls(text)
    assert (found, [call["function"]["name"] for call in calls]) == (left, names)


async def test_a_folder_without_a_tokenizer_or_a_template_says_so(tmp_path, letters):
    (tmp_path / "config.json").write_text("{}")
    texts = Texts("bare", lambda: tmp_path)
    await texts.ready()
    assert not texts.known
    with pytest.raises(RequestError, match="'bare'"):
        await texts.encode("a")
    with pytest.raises(RequestError, match="messages"):
        await letters.chat([{"role": "user", "content": "a"}], None)
    for wrong in ([{"type": "image_url"}], [{"type": "text"}, "x"]):
        with pytest.raises(RequestError, match="content"):
            await letters.chat([{"role": "user", "content": wrong}], None)


@pytest.mark.parametrize(
    ("ids", "finish", "keep", "text"),
    [
        ("ab<", {"type": "stop", "matched": "<"}, False, "ab"),
        ("ab<", {"type": "stop", "matched": "<"}, True, "ab<"),
        ("ab<", {"type": "stop", "matched": "b<"}, False, "a"),
        ("ab", {"type": "length"}, False, "ab"),
        ("ab", {"type": "stop", "matched": ALPHABET.index("b")}, False, "a"),
    ],
)
def test_what_ended_a_completion_is_no_part_of_its_text(letters, ids, finish, keep, text):
    found = GrowingText(letters, special=False).finished(letters._tokenizer.encode(ids), finish, keep_stop=keep)
    assert found == text
