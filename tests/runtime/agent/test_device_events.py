import os
from types import SimpleNamespace

import pytest

from rose.clock import Anchor
from rose.runtime.agent.watches import ServingWatch, StepTimeWatch
from rose.runtime.coserving.attachment import Attachment, describe
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from tests.runtime.coserving.parties import OtherParty


class Device:
    def __init__(self, folder):
        self.page = ArbiterPage.create(folder / "page")
        self.told = []
        self.spec = SimpleNamespace(
            device=SimpleNamespace(id="d0", gpu=None, cores=[*os.sched_getaffinity(0)]),
            page=self.page.path,
            serving_engine_id="s0",
            serving_model="asked-for",
            serving_kv_bytes_per_token=2,
            rollout=SimpleNamespace(engine_id="r0"),
            anchor=Anchor(0),
        )
        self.watch = ServingWatch(self.spec, self.page, self.record)

    def record(self, event, *, durable=None):
        self.told.append(event)

    def attach(self):
        return OtherParty(self.page.path, Party.SERVING)


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path)


DESCRIBE = (
    "describe(path, Attachment(role='serving', pid=page.get(me, Field.PID), model='m', kv_tokens=50, "
    "compute_mechanism='exclusive', memory_mechanism='budget', refused={}))"
)


def test_an_engine_comes_says_what_it_is_and_leaves(device):
    device.watch.look()
    assert device.watch.fault == "no serving engine is attached to the device's page"
    with device.attach() as serving:
        assert device.watch.fault is None
        device.watch.look()
        assert device.told == [], "its own words come a moment later"
        serving.do(DESCRIBE.format(None))
        device.watch.look()
        device.watch.look()
    device.watch.look()
    device.watch.look()
    attached, detached = device.told
    assert (attached.action, attached.engine_id, attached.role) == ("attached", "s0", "serving")
    assert attached.pid == serving.pid
    assert (attached.model, attached.kv_bytes, attached.compute_mechanism) == ("m", 100, "exclusive")
    assert (detached.action, detached.reason) == ("detached", None)
    assert device.watch.fault is not None


def test_nothing_is_lent_beside_one_that_refuses_or_is_broken(device):
    with device.attach() as serving:
        serving.do(DESCRIBE.format("'two ranks'"))
        device.watch.look()
        assert device.watch.fault == "nothing is lent beside the serving engine: two ranks"
        assert device.told[0].reason == "two ranks"
        serving.do("page.set(me, Field.BROKEN, 1)")
        assert "hooks" in device.watch.fault


def test_nothing_is_lent_beside_one_on_other_cores(device):
    device.spec.device.cores = [1000]
    with device.attach() as serving:
        serving.do(DESCRIBE.format(None))
        device.watch.look()
        assert "its process may use only cores 0" in device.watch.fault
        assert device.told[0].reason in device.watch.fault
    device.spec.device.cores = [0]
    with device.attach() as serving:
        serving.do(DESCRIBE.format(None))
        device.watch.look()
        assert device.watch.fault is None


def test_one_that_cannot_be_attached_is_recorded_once_with_the_reason(device):
    why = "serving runs with --tp-size 2"
    for _ in range(2):
        describe(device.page.path, Attachment(role="serving", pid=7, model="m", refused=why))
        device.watch.look()
    (refused,) = device.told
    assert (refused.action, refused.engine_id, refused.reason) == ("refused", "s0", why)
    assert (refused.pid, refused.model) == (7, "m")
    assert device.watch.fault == f"nothing is lent beside the serving engine, pid 7: {why}"
    with device.attach():
        device.watch.look()
        assert device.watch.fault is None, "another one that can"


def test_one_whose_hooks_fail_leaves_with_the_reason_and_has_not_died(device):
    with device.attach() as serving:
        serving.do(DESCRIBE.format(None))
        serving.do("page.set_load(replace(load, running=2))")
        device.watch.look()
        serving.do(DESCRIBE.format("'the plugin failed in serving: KeyError'"))
        serving.do("page.close()")
        device.watch.look()
        device.watch.look()
    assert [(event.action, event.reason) for event in device.told] == [
        ("attached", None),
        ("detached", "the plugin failed in serving: KeyError"),
    ]
    assert "the plugin failed in serving: KeyError" in device.watch.fault


def test_the_errors_of_predictions_are_told_where_steps_ran(device):
    watch = StepTimeWatch(device.spec, device.page, device.record)
    watch.tell()
    assert device.told == []
    page = device.page
    for party, steps, prefill, decode in ((Party.SERVING, 10, 0, 250_000), (Party.ROLLOUT, 4, 100_000, 50_000)):
        page.set(party, Field.STEPS, steps)
        page.set(party, Field.PREFILL_ERROR_PPM, prefill)
        page.set(party, Field.DECODE_ERROR_PPM, decode)
    watch.tell()
    page.set(Party.ROLLOUT, Field.STEPS, 1)  # started again
    watch.tell()
    assert 0 <= Anchor(0).now_us() - device.told[0].at_us < 60_000_000, "by the device's clock"
    assert [(e.engine_id, e.role, e.mode, e.steps, e.error_share) for e in device.told] == [
        ("s0", "serving", "decode", 10, 0.25),
        ("r0", "rollout", "prefill", 4, 0.1),
        ("r0", "rollout", "decode", 4, 0.05),
        ("r0", "rollout", "prefill", 1, 0.1),
        ("r0", "rollout", "decode", 1, 0.05),
    ]
