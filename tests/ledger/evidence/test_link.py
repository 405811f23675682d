from dataclasses import replace

import pytest

from rose.ledger.evidence import keys
from rose.ledger.evidence.content import chain_sha256, link_message
from rose.ledger.evidence.link import Link

ENTRY = {"file": "live/w/000000/0", "first_seq": 3, "last_seq": 5, "sha256": "f", "previous_sha256": ""}
ENTRY |= {"rows_sha256": "r", "chain_sha256": "c", "key": "", "signature": ""}


def _signed(previous="before"):
    key = keys.load_or_make()
    link = Link.read("w", ENTRY)
    digest = (link.writer, link.first_seq, link.last_seq, link.rows_sha256)
    link = replace(link, chain_sha256=chain_sha256(previous, *digest))
    return replace(link, key=key.public, signature=key.sign(link_message(link.chain_sha256)))


def test_an_entry_is_a_link_with_values_of_the_right_types_and_digests():
    link = Link.read("w", ENTRY)
    assert (link.events, link.entry()) == (3, ENTRY)
    for lacks in ("rows_sha256", "chain_sha256"):
        with pytest.raises(ValueError, match="without a digest of its rows"):
            Link.read("w", ENTRY | {lacks: ""})
    for name, value in (("first_seq", "3"), ("last_seq", True), ("key", 5)):
        with pytest.raises(TypeError, match=name):
            Link.read("w", ENTRY | {name: value})


def test_a_link_goes_on_from_one_end_alone():
    link = _signed()
    assert (link.fault("before"), link.fault(None), link.signature_fault()) == (None, None, None)
    assert "does not follow what was written before it" in str(link.fault("f"))


def test_what_a_link_says_and_who_signed_it_cannot_be_changed():
    places = [{"first_seq": 2}, {"last_seq": 6}, {"rows_sha256": "q"}, {"writer": "v"}]
    for changed in places:
        assert replace(_signed(), **changed).fault("before") is not None
    for changed in ({"key": "0" * 64}, {"key": ""}, {"signature": ""}, {"signature": "0" * 128}, {"chain_sha256": "f"}):
        assert "is not by the key" in str(replace(_signed(), **changed).signature_fault())


def test_a_signature_of_another_link_says_nothing_without_a_digest():
    assert replace(_signed(), rows_sha256="").fault("before") is not None
