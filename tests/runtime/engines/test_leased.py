from dataclasses import replace

import pytest
import torch

from rose.clock import monotonic_ns
from rose.runtime.agent.weights.sync import EngineSync, Target
from rose.runtime.coserving.kv.activation import LEASED_ARGUMENTS, Move
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.platform.gpu import GATED_ARGUMENTS
from rose.runtime.policy.slack import LeaseTerms
from rose.transfer.wire.server import StoreServer
from tests.runtime.conftest import until
from tests.runtime.engines.test_sglang import IDLE, generate, lend, make_spec, publish_steps

pytestmark = pytest.mark.live

#: Some gigabytes of KV pool, so that its coming and going is seen beside what else moves on the device.
TOKENS = 1 << 19


def moves(page):
    spans, _, _ = page.drain(Party.ROLLOUT, 0)
    return [(span, Move.from_aux(span.aux)) for span in spans if span.kind is Span.ACTIVATION]


def show(page):
    for span, move in moves(page):
        print(f"{move} in {(span.end_ns - span.start_ns) / 1e6:.1f} ms")


@pytest.mark.cuda
def test_it_leaves_after_a_lease_and_comes_back_with_the_weights_it_held_last(tmp_path, tiny_policy):
    # The policy's heads are smaller than other kernels take.
    arguments = [*GATED_ARGUMENTS, *LEASED_ARGUMENTS, "--mem-fraction-static=0.4", "--attention-backend=triton"]
    page, spec = make_spec(
        tmp_path, tiny_policy, gpu=0, cores=(), environment={}, max_total_tokens=TOKENS, extra_args=arguments
    )
    serving = ArbiterPage.attach(page.path, Party.SERVING)
    serving.set_load(IDLE)
    engine = EngineProcess(spec)
    sync = EngineSync(engine, spec.plugin.staging, device_id="d0")

    def away():
        return page.get(Party.ROLLOUT, Field.AWAY_SINCE_NS) != 0

    def tokens(number):
        lend(page, number)
        made = generate(engine)["output_ids"]
        assert not away()
        page.set_lease(LeaseTerms())
        until(away)
        return made

    try:
        engine.launch()
        engine.wait_ready()
        until(away)
        free_bytes = torch.cuda.mem_get_info(0)[0]
        lend(page, 1)
        until(lambda: not away())
        assert free_bytes - torch.cuda.mem_get_info(0)[0] > 0.9 * moves(page)[-1][1].moved_bytes
        first = tokens(1)
        assert len(first) == 8
        assert tokens(2) == first
        with StoreServer(publish_steps(tmp_path / "store", tiny_policy, 2)) as server:
            before = len(moves(page))
            for version in (1, 2):
                event = sync.bring(Target("", version, server.url))
                assert event.ok, event.reason
            until(lambda: moves(page)[-1][1] == replace(moves(page)[before][1], away=True))
            assert all(move.weights_alone for _, move in moves(page)[before:])
            second = tokens(3)
            lend(page, 4)
            until(lambda: not away())
            assert sync.audit() is None, "the weights that came back are those of the version, bit for bit"
            assert sync.standing.looked_ns > monotonic_ns() - 60_000_000_000
            assert sync.standing.trusted
        assert len(second) == 8
        show(page)
    finally:
        engine.stop()
        serving.close()
