import random

from rose.runtime.rollout import vocabulary
from tests.client import fleet as client_fleet
from tests.client.fleet import Engine, Fetching

FILE = """
name = "train"
cache = "{cache}"
device = [
    {{ id = "s", pool = "serving", device_class = "cpu-core", cores = [0], kv_bytes = 1 }},
    {{ id = "r", pool = "rollout", device_class = "cpu-core", cores = [1], kv_bytes = 1 }},
]
tags = {{ team = "research" }}
rollout = {{ model = "{model}" }}
task = {{ size = 3, turns_max = 4 }}
training = {{ steps = {steps}, groups_per_step = 2, group_size = 4, minibatches = 1 }}
"""


def moves():
    return [random.choice(vocabulary.MOVES[1:3]), vocabulary.EOT]


def engine(folder, **more):
    return Engine(tokens=moves, fetch=Fetching(folder), **more)


class Recorded(client_fleet.Recorded):
    def of(self, kind):
        by_id = {}
        for event in super().of(kind):
            assert by_id.setdefault(event.event_id, event) == event
        return list(by_id.values())
