import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException

import pytest

from rose.runtime.coserving.questions import CLIENT_RECORDS
from tests.runtime.agent.agents_in_turn import until
from tests.runtime.agent.scripted_gateway import ScriptedGateway
from tests.runtime.agent.test_agent import Device
from tests.runtime.coserving.attach.test_commands import fork_server_of, succeeds, wait_well

RECORDED = "SELECT {} FROM request WHERE source = 'engine' ORDER BY {}"


class Users:
    def __init__(self, url):
        self._url = url

    def _open(self, body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/generate", data=json.dumps(body).encode(), headers=headers)
        return urllib.request.urlopen(request, timeout=60)

    def ask(self, prompt, tokens, **fields):
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, **fields}
        with self._open(body) as response:
            return json.loads(response.read())

    def streamed(self, prompt, tokens):
        sampling = {"max_new_tokens": tokens, "ignore_eos": True}
        return self._open({"input_ids": prompt, "sampling_params": sampling, "stream": True})

    def stream(self, prompt, tokens, leave_after=None):
        """Return when each chunk came after the request was sent, in nanoseconds."""
        sent_ns, came_ns = time.monotonic_ns(), []
        with self.streamed(prompt, tokens) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    came_ns.append(time.monotonic_ns() - sent_ns)
                    if len(came_ns) == leave_after:
                        break
        return came_ns


def prompt(length):
    """Each length names a request: no prefix is shared."""
    return [length, *range(100, 99 + length)]


@pytest.fixture
def device(tmp_path):
    with ScriptedGateway() as gateway:
        device = Device(tmp_path, gateway)
        device.agent.start()
        yield device
        device.close()


def recorded(device, columns, order="prompt_tokens"):
    return device.rows(RECORDED.format(columns, order))


@pytest.fixture
def server(tmp_path, tiny_policy, fork_server):
    log = tmp_path / "log"
    process, url = fork_server_of(fork_server, tiny_policy, log)
    try:
        wait_well(process, url, log)
        yield process, url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.live
def test_each_request_of_a_user_is_recorded_as_the_user_saw_it(server, device):
    process, url = server
    users = Users(url)
    users.ask(prompt(5), 2)
    succeeds("attach", "--url", url, "--page", device.spec.page)

    lengths = (20, 30, 40)
    with ThreadPoolExecutor(3) as pool:
        seen = dict(zip(lengths, pool.map(lambda length: users.stream(prompt(length), 6), lengths), strict=True))
    users.ask([prompt(50), prompt(60)], 3)  # a batch
    users.ask(prompt(70), 1)
    users.ask([*prompt(70), *[7] * 10], 4, priority=3)
    users.ask(prompt(90), 3, rid=f"{CLIENT_RECORDS}0")
    users.stream(prompt(100), 1500, leave_after=2)
    with pytest.raises(urllib.error.HTTPError):
        users.ask(prompt(110), 2, sampling_params={"temperature": -1})
    until(lambda: len(recorded(device, "request_id")) >= 8)

    rows = recorded(device, "prompt_tokens, output_tokens, outcome, finish_reason, priority, lent")
    whole = [(length, 6) for length in lengths] + [(50, 3), (60, 3), (70, 1)]
    assert rows[:6] == [(*sizes, "completed", "length", None, False) for sizes in whole]
    assert rows[6] == (80, 4, "completed", "length", 3, False)
    assert rows[7][:1] + rows[7][2:] == (100, "aborted", "abort", None, False)
    assert 2 <= rows[7][1] < 1500
    assert len(rows) == 8
    assert_times_agree(device, seen)
    cached = recorded(device, "cached_tokens")
    assert cached[5] == (0,)
    assert 60 <= cached[6][0] <= 70

    kill_in_the_middle(process, users, lengths=(120, 130))
    until(lambda: len(recorded(device, "request_id")) > 8)
    failed = device.rows("SELECT reason, slo_ok FROM request WHERE outcome = 'failed'")
    assert failed == [("the serving engine died", False)] * 2


def assert_times_agree(device, seen):
    columns = "prompt_tokens, queue_ns, ttft_ns, tpot_mean_ns, tpot_max_ns, e2e_ns, output_tokens"
    for length, queue_ns, ttft_ns, mean_ns, longest_ns, whole_ns, tokens in recorded(device, columns):
        assert 0 <= queue_ns <= ttft_ns <= whole_ns
        if tokens > 1:
            assert mean_ns <= longest_ns
            assert ttft_ns + (tokens - 1) * mean_ns <= whole_ns
        if length in seen:
            first_ms, client_ms, next_ms = ttft_ns / 1e6, seen[length][0] / 1e6, mean_ns / 1e6
            print(f"first token: engine {first_ms:.2f} ms, client {client_ms:.2f} ms; next token {next_ms:.2f} ms")
            # The engine knows a token before it sends the next one.
            assert ttft_ns < seen[length][-1]


def kill_in_the_middle(process, users, lengths):
    both_answered = threading.Barrier(len(lengths) + 1, timeout=60)

    def lose(length):
        with users.streamed(prompt(length), 1500) as response:
            response.readline()
            both_answered.wait()
            with pytest.raises((OSError, HTTPException)):
                response.read()

    with ThreadPoolExecutor(len(lengths)) as pool:
        losses = [pool.submit(lose, length) for length in lengths]
        both_answered.wait()
        os.killpg(process.pid, signal.SIGKILL)
        for loss in losses:
            loss.result()
