from pathlib import Path

import psutil
import pytest
import torch

from rose.runtime.coserving.attachment import described
from rose.runtime.coserving.kv.remap import REMAP_VARIABLE
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.platform.gpu import GATED_ARGUMENTS
from rose.runtime.policy.slack import LeaseTerms
from tests.runtime.conftest import ENVIRONMENT, until
from tests.runtime.engines.test_leased import moves, show
from tests.runtime.engines.test_sglang import IDLE, answering, generate, lend, make_spec

pytestmark = pytest.mark.live

#: Most of the pool is more than what else moves in an engine's memory.
TOKENS = 65_536
PROMPT = [1 + index % 90 for index in range(100)]


def held_bytes(engine, gpu):
    """Return bytes of the host's shared memory, which has the pool, or of the card."""
    if gpu is not None:
        free, total = torch.cuda.mem_get_info(gpu)
        return total - free
    processes = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
    return sum(process.memory_info().shared for process in processes)


@pytest.mark.parametrize(
    "gpu", [pytest.param(None, id="cpu", marks=pytest.mark.long), pytest.param(0, id="cuda", marks=pytest.mark.cuda)]
)
def test_a_pool_is_the_device_s_again_without_a_lease_and_after_a_cut(tmp_path, tiny_policy, fork_server, gpu):
    asked = {**ENVIRONMENT, REMAP_VARIABLE: "1"}
    changes = {"fork_server": fork_server.path, "environment": asked}
    if gpu is not None:
        # The policy's heads are smaller than other kernels take.
        arguments = [*GATED_ARGUMENTS, "--mem-fraction-static=0.4", "--attention-backend=triton"]
        changes = {"gpu": gpu, "cores": (), "environment": {REMAP_VARIABLE: "1"}, "extra_args": arguments}
    page, spec = make_spec(tmp_path, tiny_policy, max_total_tokens=TOKENS, **changes)
    serving = ArbiterPage.attach(page.path, Party.SERVING)
    serving.set_load(IDLE)
    engine = EngineProcess(spec)
    try:
        engine.launch()
        engine.wait_ready()
        until(lambda: len(moves(page)) == 1)
        assert described(page.path, "rollout").memory_mechanism == "remap", Path(spec.log).read_text()
        unlent_bytes, pool_bytes = held_bytes(engine, gpu), moves(page)[0][1].moved_bytes
        assert pool_bytes > 0
        answers = []
        for number in (1, 2):
            lend(page, number, kv_tokens=TOKENS)
            answers.append(generate(engine, 50, prompt=PROMPT)["output_ids"])
            assert held_bytes(engine, gpu) - unlent_bytes > 0.8 * pool_bytes
            page.set_lease(LeaseTerms())
            until(lambda number=number: len(moves(page)) == 1 + 2 * number)
            assert held_bytes(engine, gpu) - unlent_bytes < 0.2 * pool_bytes
            assert [move.moved_bytes for _, move in moves(page)[-2:]] == [pool_bytes, pool_bytes]
        assert answers[0] == answers[1]
        assert len(answers[0]) == 50

        lend(page, 3, kv_tokens=TOKENS // 2)
        under_way = [answering(engine, 400, prompt=[index + 1] * 200) for index in range(5)]
        until(lambda: page.get(Party.ROLLOUT, Field.KV_TOKENS_USED) > 1000)
        serving.set(Party.SERVING, Field.KV_TOKENS_USED, 1 << 20)
        until(lambda: page.cut() is not None)
        assert page.cut().bytes_returned > 0.2 * pool_bytes
        for thread, _ in under_way:
            thread.join(150)
        assert 400 in [len(made[0].get("output_ids", [])) for _, made in under_way], "what fits goes on to its end"
        show(page)
    finally:
        engine.stop()
        serving.close()
