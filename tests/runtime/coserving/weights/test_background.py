import threading

import pytest

from rose.runtime.coserving.weights.background import Background, GivenUpError
from tests.runtime.coserving.hand_made_engine import LentDevice

LIMIT_S = 10


class Job:
    def __init__(self, portions=1):
        self.portions = portions
        self.began, self.in_portion, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.go_on, self.given_up = threading.Event(), threading.Event()

    def __call__(self, turn):
        self.began.set()
        try:
            for _ in range(self.portions):
                with turn():
                    self.in_portion.set()
                    assert self.go_on.wait(LIMIT_S)
        except GivenUpError:
            self.given_up.set()
            raise
        return self.ended.set


def test_a_job_waits_for_the_device_before_each_portion_and_its_portions_are_recorded():
    device, job = LentDevice(), Job(portions=3)
    background = Background(device.wait, (), device.record)
    job.go_on.set()
    background.start(job)
    assert job.ended.wait(LIMIT_S)
    assert (device.waits, len(device.spans), background.busy) == (3, 3, False)
    flat = [at for span in device.spans for at in span]
    assert flat == sorted(flat)


@pytest.mark.parametrize("portions", [1, 2], ids=["in its last portion", "before its last portion"])
def test_nobody_waits_for_a_job_that_is_given_up_which_does_not_end_as_if_it_were_not(portions):
    first, second = Job(portions), Job()
    background = Background(lambda: None, (), None)
    background.start(first)
    assert first.in_portion.wait(LIMIT_S)
    background.give_up()
    assert not background.busy
    second.go_on.set()
    background.start(second)
    assert not second.began.wait(0.05), "it begins when the one before has ended"
    first.go_on.set()
    assert second.ended.wait(LIMIT_S)
    assert first.given_up.is_set() is (portions == 2)
    assert not first.ended.is_set()
