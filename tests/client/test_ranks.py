import os
import resource
import signal
import time

import torch
from safetensors.torch import load_file

from rose.events import Verdict
from tests.client.fleet import Engine, Holding, fleet, same_bits
from tests.client.trainer_ranks import Trainer, run_ranks


def publish_three(trainer: Trainer):
    served = []
    with trainer.open_run() as run:
        for version in range(3):
            trainer.save(version)
            assert run.publish(trainer.model.state_dict()) == version
            (generation,) = run.generate([[trainer.rank]], {"max_new_tokens": 1}, version_min=version, progress=None)
            served += generation.versions
            trainer.update()
        if trainer.rank == 1:
            time.sleep(1)  # Rank 0 does not close the run before.
            judged = {"verifier": "even", "reward": 1.0, "threshold": 0.5, "accepted": True}
            run.record(Verdict(trajectory_id="t", group_id="g", step=0, **judged))
        return served, bool(run._origin.url), run.run_id


def test_each_rank_publishes_its_shards_and_engines_hold_the_whole(tmp_path):
    holding = Holding(tmp_path / "staging")
    with fleet(tmp_path / "state", Engine(fetch=holding)) as service:
        (code, first), (other_code, second) = run_ranks(publish_three, service.url, tmp_path)
        (run,) = service.gateway.controller.runs
    assert (code, other_code) == (0, 0)
    assert first == ([0, 1, 2], True, run.facts.run_id)
    assert second == ([0, 1, 2], False, run.facts.run_id)
    assert run.facts.state == "closed"
    for version in range(3):
        assert same_bits(holding.weights[version], load_file(tmp_path / f"{version}.safetensors")), version


def fail_and_go_on(trainer: Trainer):
    (elsewhere := trainer.folder / str(trainer.rank)).mkdir()
    os.chdir(elsewhere)
    with trainer.open_run(folder="/proc/self/cwd") as trainer.run:  # Another folder on each rank, as on two hosts.
        failures = [trainer.failure(trainer.model.state_dict())]
    with trainer.open_run(folder=trainer.folder / "weights") as trainer.run:
        trainer.run.publish(trainer.model.state_dict())
        trainer.update()
        state = trainer.model.state_dict()
        own = trainer.rank == 1
        for odd in ({"0.bias": b"odd"}, {"0.bias": torch.ones(7)}):
            failures.append(trainer.failure(state | odd if own else state))
        failures.append(trainer.failure(state, version=5 + trainer.rank))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if own:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # As on a full disk.
        failures.append(trainer.failure(state))
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        kept = trainer.run.version
        trainer.save(1)
        trainer.run.publish(state)
        trainer.run.generate([[1]], {"max_new_tokens": 1}, version_min=1, progress=None)
        if own:
            trainer.run.leave()
        else:
            failures.append(trainer.failure(state))
        return failures, kept, trainer.run.version


def test_if_a_rank_fails_no_version_appears_and_all_ranks_say_which_rank_and_tensor(tmp_path):
    holding = Holding(tmp_path / "staging")
    with fleet(tmp_path / "state", Engine(fetch=holding)) as service:
        (code, first), (_, second) = run_ranks(fail_and_go_on, service.url, tmp_path)
    assert code == 0
    (*failures, left), kept, version = first
    assert second == (failures, kept, version)
    elsewhere, kind, overlap, numbers, disk = failures
    assert elsewhere.startswith("ClientError rank 1: host ")
    assert "cannot see rank 0's folder '/proc/self/cwd'" in elsewhere
    assert kind.startswith("TransferError rank 1: tensor '0.bias' is a bytes")
    assert all(part in overlap for part in ("TransferError tensor '0.bias'", "rank 0", "[0:4]", "rank 1", "[0:7]"))
    assert numbers.startswith("ClientError version is [5, 6] on the ranks")
    assert disk.startswith("TransferError rank 1: version 1 cannot be written to")
    assert left == "ClientError rank 1: it has left the run"
    assert (kept, version) == (0, 1)
    assert list(holding.weights) == [1]
    assert same_bits(holding.weights[1], load_file(tmp_path / "1.safetensors"))


def die(trainer: Trainer):
    trainer.run = trainer.open_run()
    trainer.run.publish(trainer.model.state_dict())
    trainer.update()
    if trainer.rank == 1:
        trainer.run._origin._publisher.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    failure = trainer.failure(trainer.model.state_dict())
    trainer.run.leave()
    return failure


def test_a_rank_that_is_killed_while_it_publishes_leaves_no_version(tmp_path):
    with fleet(tmp_path / "state") as service:
        (code, failure), (killed, _) = run_ranks(die, service.url, tmp_path)
        (run,) = service.gateway.controller.runs
        assert run.facts.version == 0
    assert (code, killed) == (0, -signal.SIGKILL)
    assert failure.startswith("ClientError a rank of the trainer is gone")
