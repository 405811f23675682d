import asyncio
import threading

from rose.clock import Anchor, monotonic_ns
from rose.runtime.agent import control
from rose.runtime.agent.control import Control
from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.client import ControlClient
from tests.runtime.agent.scripted_gateway import ScriptedGateway
from tests.runtime.scheduling.stand_ins import AGENT_TOKEN
from tests.runtime.scheduling.stand_ins import gateway as controller

#: Longer than any test: only news ends a heartbeat.
HOLD_S = 10.0


class Agent:
    def __init__(self, url, hold_s=HOLD_S):
        self.answers, self.times_ns, self.came = [], [], threading.Condition()
        self.control = Control("d0", ControlClient(url), hold_s, lambda: {"engines": []}, self.answered, Anchor(0))

    def answered(self):
        with self.came:
            self.answers.append(self.control.answer)
            self.times_ns.append(self.control.answered_ns)
            self.came.notify_all()

    def wait(self, condition):
        with self.came:
            assert self.came.wait_for(condition, 20)


def test_news_is_heard_while_a_heartbeat_is_held(gateway):
    agent = Agent(gateway.url)
    agent.control.start()
    agent.wait(lambda: len(agent.answers) == 1)
    gateway.wait(lambda: len(gateway.heard) == 2)
    gateway.want(r0=500, step=3)
    agent.wait(lambda: len(agent.answers) == 2)
    assert (agent.answers[1].wanted_ns, agent.answers[1].step) == ({"r0": 500}, 3)
    assert 0 < agent.times_ns[1] <= monotonic_ns()
    assert [heartbeat.seen for heartbeat in gateway.heard[:2]] == [0, 1]
    assert gateway.heard[0].hold_s == HOLD_S
    gateway.want()
    agent.wait(lambda: len(agent.answers) == 3)
    threading.Timer(0.05, gateway.want).start()
    agent.control.stop()


def test_a_gateway_that_is_away_has_answered_nothing_and_is_found_when_it_comes():
    port = free_port()
    agent = Agent(f"http://127.0.0.1:{port}", hold_s=0.05)
    assert not agent.control.beat()
    assert (agent.control.answered_ns, agent.control.answer.wanted_ns) == (0, {})
    assert agent.control.take_back("r0", "serving is late") == 0
    agent.control.start()
    with ScriptedGateway(port) as gateway:
        gateway.want(r0=1)
        agent.wait(lambda: any(answer.wanted_ns for answer in agent.answers))
        assert agent.control.take_back("r0", "serving is late") == 3
        assert gateway.preempted[0].kv_tokens is None
        agent.control.stop()
    before = len(agent.answers)
    assert not agent.control.beat()
    assert len(agent.answers) == before


def test_a_heartbeat_has_the_clock_that_device_time_is_recorded_by(gateway):
    anchor = Anchor(7_000_000_000)
    control = Control("d0", ControlClient(gateway.url), HOLD_S, lambda: {"engines": []}, lambda: None, anchor=anchor)
    assert control.beat()
    (heartbeat,) = gateway.heard
    assert heartbeat.clock.device_time_ns - heartbeat.clock.monotonic_ns == 7_000_000_000


def test_why_the_controller_refuses_a_device_is_logged_once(caplog):
    async def refused():
        async with controller(devices={"d0": "local"}) as (_, url):
            control = Control(
                "d9", ControlClient(url, AGENT_TOKEN), HOLD_S, lambda: {"engines": []}, lambda: None, Anchor(0)
            )
            return [await asyncio.to_thread(control.beat) for _ in range(2)]

    assert asyncio.run(refused()) == [False, False]
    (record,) = [record for record in caplog.records if record.name == control.__name__]
    assert "403" in record.getMessage()
    assert "d9" in record.getMessage()
