from types import SimpleNamespace

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import CutRecord
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.policies import NAMES
from rose.runtime.policy.slack import LeaseTerms

#: A device of 1,000 slots of each model, 200 of them headroom: half of those used is pressure.
MEMORY = KvMemory(
    device_bytes=1000, serving_bytes_per_token=1, rollout_bytes_per_token=1, headroom=0.2, high_watermark=0.5
)


def lease(kv_tokens=0, number=1, *, seconds=3600.0, policy="rose", **terms):
    expires_ns, policy_number = monotonic_ns() + int(seconds * 1e9), NAMES.index(policy)
    usual = {"compute_share": 1.0, "regret_share": 0.05, "policy": policy_number, **terms}
    return LeaseTerms(number=number, expires_ns=expires_ns, kv_budget_tokens=kv_tokens, **usual)


def cut_record(lease_number=1, **changes):
    usual = {"count": 1, "at_ns": 5000, "tokens_before": 500, "tokens_after": 250, "requests": 3, "tokens_kept": 70}
    return CutRecord(lease_number=lease_number, took_ns=900, bytes_returned=4096, **{**usual, **changes})


class PoolMemory:
    mechanism = "page-return"

    def grow(self, tokens):
        return tokens

    def surplus(self, tokens):
        return False

    def give_back(self, keep_tokens=0):
        return 0


class Recorded(list):
    durable = None

    def __call__(self, event, *, durable=None):
        self.append(event)
        self.durable = durable


class View:
    """Requests that hold memory, or wait, in order of arrival."""

    kv_tokens_total = 1000

    def __init__(self, running=(), waiting=()):
        self.holds = dict(running)
        self.cache = 0
        self.waiting = [
            SimpleNamespace(
                rid=name, origin_input_ids=[1] * tokens, sampling_params=SimpleNamespace(max_new_tokens=new)
            )
            for name, tokens, new in waiting
        ]
        self.ended = []

    running = property(lambda self: list(self.holds))
    has_work = property(lambda self: bool(self.holds or self.waiting))

    def kv_tokens_used(self):
        return sum(self.holds.values())

    def kv_tokens_cached(self):
        return self.cache

    def held(self):
        names = [*self.holds, *(request.rid for request in self.waiting)]
        return {name: index for index, name in enumerate(names)}

    def end_ids(self, ids):
        tokens = [self.holds.pop(name) for name in ids if name in self.holds]
        self.cache += sum(tokens)
        self.waiting = [request for request in self.waiting if request.rid not in ids]
        self.ended += ids
        return len(ids), sum(tokens)

    def end(self, requests):
        return self.end_ids([request.rid for request in requests])

    def evict(self, tokens):
        self.cache -= min(self.cache, max(0, tokens))
