from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rose.runtime.coserving.weights.background import Background, GivenUpError
from tests.runtime.coserving.hand_made_engine import LentDevice

LIMIT_S = 10
CORE = min(os.sched_getaffinity(0))


@pytest.fixture
def device():
    return LentDevice()


@pytest.fixture
def made(device):
    return Background(device.wait, (), device.record)


class Job:
    """`portions` turns, perhaps in several threads; `ended` is set if it came to its end."""

    def __init__(self, portions=1, threads=1):
        self.portions, self.threads = portions, threads
        self.began, self.in_portion, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.given_up = threading.Event()

    def __call__(self, turn):
        def portion(_):
            with turn():
                self.in_portion.set()
                assert self.go_on.wait(LIMIT_S)

        self.began.set()
        try:
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(portion, range(self.portions)))
        except GivenUpError:
            self.given_up.set()
            raise
        return self.ended.set


def test_a_job_waits_for_the_device_before_each_portion_and_its_portions_are_recorded(made, device):
    job = Job(portions=3)
    made.start(job)
    assert job.ended.wait(LIMIT_S)
    assert device.waits == 3
    assert len(device.spans) == 3
    flat = [at for span in device.spans for at in span]
    assert flat == sorted(flat)
    assert not made.busy


def test_nobody_waits_for_a_job_that_is_given_up_and_the_next_one_begins_when_it_has_ended(made, device):
    first, second = Job(portions=2), Job()
    first.go_on.clear()
    made.start(first)
    assert first.in_portion.wait(LIMIT_S)
    made.start(second)
    assert not second.began.wait(0.05)
    first.go_on.set()
    assert second.ended.wait(LIMIT_S)
    assert first.given_up.is_set()
    assert not first.ended.is_set()


def test_a_job_that_was_given_up_in_its_last_portion_does_not_end_as_if_it_were_not(made):
    first, second = Job(), Job()
    first.go_on.clear()
    made.start(first)
    assert first.in_portion.wait(LIMIT_S)
    made.give_up()
    assert not made.busy
    first.go_on.set()
    made.start(second)
    assert second.ended.wait(LIMIT_S)
    assert not first.ended.is_set()
