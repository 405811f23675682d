"""Publishers of one folder, and of several runs: real stores."""

import pytest
import torch

from rose.transfer.errors import TransferError
from rose.transfer.store.fence import FencedError
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.server import StoreServer


def weights(version):
    return {"w": torch.arange(64, dtype=torch.float32) + version}


def test_of_two_publishers_the_newer_goes_on_and_the_older_is_refused(tmp_path):
    first = VersionStore(tmp_path, run_id="a")
    first.publish(0, weights(0))
    second = VersionStore(tmp_path, run_id="a")
    second.publish(1, weights(1))
    with pytest.raises(FencedError, match=r"has publisher 2, newer than 1"):
        first.publish(2, weights(2))
    second.publish(2, weights(2))
    assert second.latest() == 2


def test_a_number_that_was_given_counts_in_whatever_order_publishers_come(tmp_path):
    VersionStore(tmp_path, run_id="a", fence=5).publish(0, weights(0))
    with pytest.raises(FencedError):
        VersionStore(tmp_path, run_id="a", fence=4).publish(1, weights(1))
    # Ranks of one publisher, and one that begins anew, have the same.
    VersionStore(tmp_path, run_id="a", fence=5).publish(1, weights(1))
    VersionStore(tmp_path, run_id="a", fence=6).publish(2, weights(2))


def test_a_publisher_that_was_taken_over_while_it_encoded_makes_nothing_visible(tmp_path, monkeypatch):
    slow = VersionStore(tmp_path, run_id="a", fence=1)
    slow.publish(0, weights(0))
    complete = slow._complete

    def overtaken(part, writer):
        VersionStore(tmp_path, run_id="a", fence=2).publish(1, weights(7))
        return complete(part, writer)

    monkeypatch.setattr(slow, "_complete", overtaken)
    with pytest.raises(FencedError):
        slow.publish(1, weights(1))
    assert slow.latest() == 1


def test_a_run_does_not_publish_into_another_ones_folder(tmp_path):
    VersionStore(tmp_path).publish(0, weights(0))
    with pytest.raises(TransferError, match="versions of no run, but this publisher is of run 'a'"):
        VersionStore(tmp_path, run_id="a").publish(1, weights(1))


def test_a_receiver_refuses_another_runs_package_before_it_fetches_a_chunk(tmp_path):
    one, other = VersionStore(tmp_path / "one", run_id="a"), VersionStore(tmp_path / "other", run_id="b")
    one.publish(0, weights(0))
    other.publish(0, weights(9))
    staging = tmp_path / "staging"
    with StoreServer(one) as at_one, StoreServer(other) as at_other:
        Receiver(at_one.url, None, staging, run_id="a").fetch(0, None)
        with pytest.raises(TransferError, match=r"version 0 at .* is of run 'b', expected one of run 'a'"):
            Receiver(at_other.url, None, staging / "x", run_id="a").fetch(0, None)
        # What another run left there under the same name is not taken for this one's.
        staged = Receiver(at_other.url, None, staging, run_id="b").fetch(0, None)
    assert [manifest.run_id for manifest in staged.manifests] == ["b"]
