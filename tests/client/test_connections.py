import socket
import sys
import time

import pytest

from rose.http_calls import GONE_S, notice_gone
from tests.long_form import LONG
from tests.runtime import hosts
from tests.runtime.conftest import until
from tests.runtime.hosts import Network

#: Far beyond the time in which it is noticed, and far less than a turn may wait.
_NOTICED_S = 150.0
_CONTROLLER = """
import asyncio
from rose.runtime.scheduling.gateway import Gateway

async def main():
    gateway = Gateway("0.0.0.0", 7000, "token-of-the-tests", models=["tiny"])
    await gateway.start()
    while True:
        print("turns", sum(len(load.turns) for load in gateway.controller.loads.values()), flush=True)
        await asyncio.sleep(0.1)

asyncio.run(main())
"""
_TRAINER = """
import asyncio, sys
from rose import client
from rose.client.address import RunAddress
from rose.client.control import call
from rose.client.turns import TurnClient

async def main(url):
    opened = call(url, "POST", "/runs", {"name": "n", "model": "tiny"}, away_s=60)
    async with TurnClient(RunAddress(url=url, run_id=opened["run_id"], fence=1, away_s=1)) as turns:
        try:
            await turns.turn([1])
        except client.ControllerAwayError as error:
            print(error, flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.long
@pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing()))
def test_a_line_that_is_cut_is_noticed_at_both_ends(tmp_path):
    with Network(tmp_path) as network, (tmp_path / "log").open("w") as log:
        controllers, trainers = network.add(), network.add()
        controller = controllers.start(sys.executable, "-c", _CONTROLLER, output=log)

        def turns():
            return (tmp_path / "log").read_text().splitlines()[-1:]

        until(lambda: turns() or controller.poll() is not None, 60)
        with (tmp_path / "trainer").open("w") as output:
            trainer = trainers.start(
                sys.executable, "-c", _TRAINER, f"http://{controllers.address}:7000", output=output
            )
        until(lambda: turns() == ["turns 1"] or trainer.poll() is not None, 60)
        # No engine makes the turn: nothing passes between them, and that alone breaks nothing off.
        time.sleep(GONE_S + 15 if LONG else 1)
        assert (turns(), trainer.poll()) == (["turns 1"], None), (tmp_path / "trainer").read_text()
        trainers.unplug()
        until(lambda: trainer.poll() is not None, _NOTICED_S)
        assert "did not answer" in (tmp_path / "trainer").read_text()
        until(lambda: turns() == ["turns 0"], _NOTICED_S)
        assert controller.poll() is None


def test_what_connects_to_a_socket_that_listens_has_it_set_as_well():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        notice_gone(listening)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == GONE_S * 1000
            idle_s, probe_s, probes = (
                accepted.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle_s + probe_s * probes == GONE_S
