import uuid

import pytest

from rose.ledger.files.layout import LedgerError
from rose.ledger.growth.archive import Store


def test_what_is_written_is_read(tmp_path):
    for url in (str(tmp_path / "away"), f"memory:///{uuid.uuid4().hex}/away"):
        store = Store(url)
        assert (store.read("a/b/file"), store.names("a/b")) == (None, [])
        for content in (b"one", b"other"):
            store.write("a/b/file", content)
            assert store.read("a/b/file") == content
        store.write("a/b/another", b"")
        assert store.names("a/b") == ["another", "file"]
        store.remove("a/b/file")
        assert (store.read("a/b/file"), store.names("a/b")) == (None, ["another"])


def test_its_files_have_urls_and_a_url_that_will_not_do_is_refused(tmp_path):
    assert Store(str(tmp_path)).url("a/b") == f"file://{tmp_path}/a/b"
    assert Store(f"file://{tmp_path}/").url() == f"file://{tmp_path}"
    assert Store("memory:///x").url("a") == "memory:///x/a"
    assert Store("memory:///x").local_folder() is None
    assert Store(str(tmp_path)).local_folder() == tmp_path
    for url, says in (
        ("simplecache::s3://bucket", "goes through a cache"),
        ("sftp://me:secret@host/x", "has a password"),
        ("nosuchprotocol://x", "cannot open nosuchprotocol://x"),
    ):
        with pytest.raises(LedgerError, match=says) as caught:
            Store(url)
        assert "secret" not in str(caught.value)


def test_what_a_place_refuses_names_the_file(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = Store(str(tmp_path / "file"))
    with pytest.raises(LedgerError, match=f"cannot write to file://{tmp_path}/file/name"):
        store.write("name", b"")
    with pytest.raises(LedgerError, match="cannot read"):
        Store(str(tmp_path)).read("")
