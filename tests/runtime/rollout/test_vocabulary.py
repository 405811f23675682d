from tokenizers import Tokenizer

from rose.runtime.rollout import vocabulary


def test_its_tokenizer_makes_ids_of_texts_and_texts_of_ids(tmp_path):
    vocabulary.save_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids, text = list(range(len(vocabulary.NAMES))), " ".join(vocabulary.NAMES)
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids) == " " + text
    assert tokenizer.encode(tokenizer.decode(ids)).ids == ids
    assert tokenizer.encode("LEFT nowhere EOT").ids == [vocabulary.MOVES[0], vocabulary.PAD, vocabulary.EOT]
