from pathlib import Path

from rose.transfer.apply.staged import Staged
from rose.transfer.wire.receiver import Receiver
from tests.transfer.served import put


def test_a_way_of_more_than_a_hundred_packages_keeps_its_order(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for version in range(102):
        put(store, version, version - 1 if version else None, [bytes([version])], listed=version == 101)
    staged = Receiver(store.as_uri(), None, tmp_path / "staging").fetch(101, 0)
    assert [manifest.version for manifest in Staged.open(staged.folder).manifests] == list(range(1, 102))
