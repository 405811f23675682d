import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from rose import client
from rose.client.publishing import WeightOrigin
from rose.transfer.codec.bits import from_bits
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import plan
from rose.transfer.store.encoder import rebuild
from rose.transfer.store.store import VersionStore
from tests.client.fleet import MODEL, Engine, Fetching, fleet


def weights(seed):
    torch.manual_seed(seed)
    return {"a.weight": torch.nn.Parameter(torch.randn(64, 8)), "b.weight": torch.randn(8).bfloat16()}


def test_engines_fetch_each_version_and_it_names_its_run(tmp_path):
    fetching = Fetching(tmp_path / "staging")
    with (
        fleet(tmp_path / "state", Engine(fetch=fetching)) as service,
        client.open_run(service.url, name="n", model=MODEL, folder=tmp_path / "weights") as run,
    ):
        for version in range(3):
            assert run.publish(weights(version)) == version
            (generation,) = run.generate([[1]], {"max_new_tokens": 1}, version_min=version)
            assert generation.versions == [version]
    assert fetching.fetched == [(run.run_id, version, {run.run_id}) for version in range(3)]


def test_a_resumed_client_serves_what_was_published(tmp_path):
    with fleet(tmp_path / "state", Engine(fetch=Fetching(tmp_path / "staging"))) as service:
        fields = {"name": "n", "model": MODEL, "folder": tmp_path / "weights"}
        first = client.open_run(service.url, **fields)
        first.publish(weights(0))
        first.leave()
        with client.open_run(service.url, resume=first.run_id, **fields) as second:
            assert second.publish(weights(0), version=0) == 0
            facts = service.gateway.controller.runs.get(second.run_id).facts
            assert (facts.url, facts.token) == (second._origin.url, second._origin.token)
            assert second.publish(weights(1)) == 1
            with pytest.raises(TransferError, match=r"version 0 is not newer"):
                second.publish(weights(2), version=0)
            # A client that does not know yet that it was taken over cannot write beside its successor either.
            third = client.open_run(service.url, resume=first.run_id, **fields)
            third.publish(weights(2))
            with pytest.raises(TransferError, match=r"has publisher .*, newer than"):
                second._origin.publish(weights(3), 3)
            third.close()
            second.leave()


def test_another_run_s_folder_is_refused_and_an_impossible_one_before_the_run_is_opened(tmp_path):
    (tmp_path / "file").touch()
    with fleet(tmp_path / "state") as service:
        for folder in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(client.ClientError, match=f"folder {str(folder)!r} cannot be created .*: give another"):
                client.open_run(service.url, name="n", model=MODEL, folder=folder)
        assert list(service.gateway.controller.runs) == []
        with client.open_run(service.url, name="one", model=MODEL, folder=tmp_path / "weights") as one:
            one.publish(weights(0))
        with client.open_run(service.url, name="two", model=MODEL, folder=tmp_path / "weights") as two:
            for version in (5, 0):
                with pytest.raises(TransferError, match="give each run a folder of its own"):
                    two.publish(weights(0), version=version)
            assert service.gateway.controller.runs.get(two.run_id).facts.version is None


def test_a_version_that_is_published_again_must_be_the_same(tmp_path):
    with fleet(tmp_path / "state") as service:
        fields = {"name": "n", "model": MODEL, "folder": tmp_path / "weights"}
        first = client.open_run(service.url, **fields)
        first.publish(weights(0))
        first.leave()
        with client.open_run(service.url, resume=first.run_id, **fields) as second:
            with pytest.raises(TransferError, match=r"version 0 exists .* 'a\.weight' .* publish a newer version"):
                second.publish(weights(1), version=0)
            with pytest.raises(TransferError, match=r"differ from version 0 in \['b\.weight'\]"):
                second.publish({"a.weight": weights(0)["a.weight"]}, version=0)
            assert second.publish(weights(0), version=0) == 0
            assert second.publish(weights(1)) == 1
        # Nor from other folders: an engine knows its weights by their version alone.
        fields.pop("folder")
        with client.open_run(service.url, resume=first.run_id, folder=tmp_path / "second", **fields) as second:
            with pytest.raises(client.ClientError, match=r"version is 1, which run .* published with other weights"):
                second.publish(weights(2), version=1)
        with client.open_run(service.url, resume=first.run_id, folder=tmp_path / "third", **fields) as third:
            # It is whole in this folder, and a delta in the first.
            assert third.publish(weights(1), version=1) == 1
            assert service.gateway.controller.runs.get(first.run_id).facts.url == third._origin.url
            assert third.publish(weights(2)) == 2
        with client.open_run(service.url, host="203.0.113.7", **fields) as run:
            with pytest.raises(client.ClientError, match=r"host '203\.0\.113\.7' cannot be bound"):
                run.publish(weights(0))


def test_tensors_are_given_to_the_store_where_they_lie(tmp_path):
    origin = WeightOrigin(tmp_path, "127.0.0.1", run_id="r", fence=1)
    origin._publisher = publisher = Mock()
    tensors = weights(0) | {"c.weight": torch.nn.Parameter(torch.ones(4))}
    origin.publish(tensors, 0)
    origin.close()
    published = {cut.info.name: cut.source for cut in publisher.publish.call_args.args[1]}
    assert [published[name].data_ptr() for name in tensors] == [tensor.data_ptr() for tensor in tensors.values()]
    assert not any(tensor.requires_grad for tensor in published.values())


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_tied_tensors_have_one_name_and_may_change_once_they_are_published(tmp_path, where):
    origin = WeightOrigin(tmp_path, "127.0.0.1", run_id="r", fence=1)
    tied = torch.zeros(64, 8, dtype=torch.bfloat16, device=where)
    with torch.cuda.stream(torch.cuda.Stream()) if where == "cuda" else nullcontext():
        for version in range(3):
            if where == "cuda":
                torch.cuda._sleep(100_000_000)
            tied += 1
            origin.publish({"embed_tokens.weight": tied, "lm_head.weight": tied}, version)
            tied *= 2
    origin.close()
    store = VersionStore(tmp_path / "versions", run_id="r")
    for version, value in enumerate([1, 3, 7]):
        way = [store.manifest(package) for package in plan(store.packages(), version, None)]
        (key,) = {(piece.name, piece.region) for piece in way[-1].pieces}
        assert key[0] == "embed_tokens.weight"
        assert (from_bits(rebuild(way, [key], store._chunks).bits[key], "bfloat16") == value).all()


#: Has a folder as a trainer that publishes, and goes on until it is killed.
TRAINER = """
import time
from rose.private_files import TemporaryFolder

folder = TemporaryFolder("rose-run-weights-")
(folder.path / "versions").mkdir()
print("published", flush=True)
time.sleep(60)
"""


def test_what_a_killed_trainer_published_is_removed_by_the_next_client(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with fleet(tmp_path / "state") as service:
        environment = os.environ | {"TMPDIR": str(temporary)}
        with subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, env=environment) as killed:
            assert killed.stdout.readline() == b"published\n"
            killed.kill()
        (left,) = temporary.iterdir()
        # One that is as young as this may not be locked yet.
        os.utime(left, (0, 0))
        with client.open_run(service.url, name="n", model=MODEL) as living:
            living.publish(weights(0))
            (kept,) = temporary.iterdir()
            assert kept != left
            os.utime(kept, (0, 0))
            with client.open_run(service.url, name="n", model=MODEL) as another:
                another.publish(weights(0))
                assert len(list(temporary.iterdir())) == 2
                assert (kept / "versions").exists()
        assert list(temporary.iterdir()) == []
