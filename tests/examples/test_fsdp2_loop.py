"""The example in two processes of torchrun, against a real controller and its ledger."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file

from rose.ledger.files import catalog, layout
from rose.ledger.writer import LedgerWriter
from tests.client.fleet import Engine, Holding, fleet, same_bits

PROGRAM = Path(__file__).parents[2] / "examples" / "fsdp2_loop.py"


def test_two_ranks_train_on_a_fleet_and_engines_hold_what_both_publish(tmp_path, tiny_policy):
    ledger, holding = tmp_path / "ledger", Holding(tmp_path / "staging")
    layout.create(ledger)
    engine = Engine(fetch=holding, tokens=lambda: random.choices(range(3, 20), k=8))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with (
        LedgerWriter.open(ledger, "controller", "fleet") as writer,
        fleet(tmp_path / "state", engine, writer=writer, token="token-of-the-tests") as there,
    ):
        done = subprocess.run(
            [*torchrun, str(PROGRAM), there.url, tiny_policy, "2"],
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
            env=os.environ | {"ROSE_TOKEN": "token-of-the-tests", "OMP_NUM_THREADS": "1"},
        )
    assert done.returncode == 0, done.stderr
    # Gloo writes to the same stdout in pieces, so that a rank's line may begin after such a piece.
    steps = sorted(re.findall(r"rank \d, step \d", done.stdout))
    assert steps == ["rank 0, step 0", "rank 0, step 1", "rank 1, step 0", "rank 1, step 1"]
    checkpoint = load_file(Path(tiny_policy) / "model.safetensors")
    assert same_bits(holding.weights[0], checkpoint)
    assert holding.weights[1].keys() == checkpoint.keys()
    assert not same_bits(holding.weights[1], checkpoint)
    with catalog.connect(ledger) as connection:
        (runs,) = connection.execute("SELECT count(DISTINCT run_id) FROM turn").fetchone()
        verdicts = connection.execute("SELECT count(*), count(DISTINCT group_id) FROM verdict").fetchone()
    assert (runs, verdicts) == (1, (32, 4))


def test_it_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60
