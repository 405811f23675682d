"""An engine without SGLang: real parameters and an updater for each rank."""

import queue
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from benchmarks.transfer.shards import ShardedStore
from rose.runtime.agent.weights.sync import EngineSync
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.coserving.questions import TAKEN, Ranks, parse_question
from rose.runtime.coserving.weights.weights import WeightUpdater
from rose.transfer.layout.shards import ModelShape, receiver_regions

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, VOCAB = 4, 2, 8, 16, 24, 70


def shape():
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    for layer in range(2):
        path = f"model.layers.{layer}"
        for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            shapes[f"{path}.self_attn.{part}_proj.weight"] = (heads * HEAD_DIM, HIDDEN)
        shapes[f"{path}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[f"{path}.mlp.gate_proj.weight"] = shapes[f"{path}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{path}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes[f"{path}.input_layernorm.weight"] = (HIDDEN,)
    shapes["model.norm.weight"] = (HIDDEN,)
    return ModelShape(shapes, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, vocab_size=VOCAB)


def random_weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(sides, generator=generator).bfloat16() for name, sides in shape().shapes.items()}


def stepped(weights, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.where(torch.rand(tensor.shape, generator=generator) < 0.1, tensor * 1.01, tensor)
        for name, tensor in weights.items()
    }


def published(folder, versions, **options):
    store = ShardedStore(folder, model=shape(), **options)
    for version, weights in enumerate(versions):
        store.publish(version, weights)
    return store


def sync_of(engine, **options):
    return EngineSync(engine, engine.staging, device_id="d0", **options)


class LentDevice:
    def __init__(self):
        self.open, self.asked = threading.Event(), threading.Event()
        self.open.set()
        self.waits, self.spans = 0, []

    def wait(self):
        self.waits += 1
        self.asked.set()
        assert self.open.wait(10)

    def record(self, start_ns, end_ns):
        self.spans.append((start_ns, end_ns))


def fused(weights, rank, tp, dtype, device="cpu"):
    """Return a rank's parameters as SGLang lays them out."""
    held = {name: weights[name][box.slices] for name, box in receiver_regions(shape(), tp, rank).items()}
    vocabulary_rows = 128 // tp
    parameters = {}
    for name, whole in held.items():
        module, _, leaf = name.rpartition(".")
        path, _, kind = module.rpartition(".")
        tensor = whole
        if kind in ("embed_tokens", "lm_head"):
            tensor = torch.cat([tensor, torch.zeros(vocabulary_rows - len(tensor), HIDDEN)])
        elif kind == "q_proj":
            kind, tensor = "qkv_proj", torch.cat([held[f"{path}.{part}_proj.{leaf}"] for part in "qkv"])
        elif kind == "gate_proj":
            kind, tensor = "gate_up_proj", torch.cat([tensor, held[f"{path}.up_proj.{leaf}"]])
        elif kind in ("k_proj", "v_proj", "up_proj"):
            continue
        parameters[".".join(part for part in (path, kind, leaf) if part)] = torch.nn.Parameter(
            tensor.to(device, dtype).clone(), requires_grad=False
        )
    return parameters


class Agreement:
    def __init__(self, size):
        self._votes = []
        self._all_here = threading.Barrier(size, timeout=10)

    def all_say(self, mine):
        self._votes.append(mine)
        self._all_here.wait()
        said = all(self._votes)
        if self._all_here.wait() == 0:
            self._votes.clear()
        self._all_here.wait()
        return said


def answer_to(message):
    return {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": message}}}


class HandMadeEngine:
    #: Engines that a test made; `conftest.py` closes them before their folders are removed.
    open: ClassVar = []

    def __init__(self, folder, weights, *, tp=1, dtype=torch.float32, device="cpu", **of_updaters):
        folder.mkdir(parents=True, exist_ok=True)
        self.staging = folder / "staging"
        self.staging.mkdir()
        self.page = ArbiterPage.create(folder / "page")
        url = "http://127.0.0.1:1"
        capacities = {"capacity": 4, "kv_bytes_per_token": 2}
        names = {"engine_id": "e0", "model_name": "tiny", "outer_url": url}
        self.spec = SimpleNamespace(**names, door=None, token_ids_only=False, **capacities)
        self.alive, self.url = True, "http://127.0.0.1:1"
        #: Verbs whose requests are taken and then forgotten, and what to do before one is passed on.
        self.deaf_to = set()
        self.before = {}
        #: Ranks that a request reaches; all of them, unless a test says otherwise.
        self.reached = range(tp)
        self.ranks = [fused(weights, rank, tp, dtype, device) for rank in range(tp)]
        self.schedulers = [
            SimpleNamespace(forward_ct=7, record_weight_version_change=lambda new_version: None) for _ in range(tp)
        ]
        agreement = Agreement(tp)
        config = SimpleNamespace(
            num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, vocab_size=VOCAB
        )
        self.updaters = [
            WeightUpdater(
                self.schedulers[rank],
                SimpleNamespace(model_config=config, model=SimpleNamespace(named_parameters=self.ranks[rank].items)),
                ArbiterPage.create(folder / f"page-{rank}"),
                self.staging,
                Ranks(rank, tp, agreement.all_say),
                **of_updaters,
            )
            for rank in range(tp)
        ]
        self.open.append(self)

    def close(self):
        for updater in self.updaters:
            updater._background.give_up()
            if updater._background._thread is not None:
                updater._background._thread.join(10)

    def post(self, path, body):
        assert path == "/generate"
        verb, version = parse_question(body["rid"])
        self.before.pop(verb, lambda: None)()
        if verb in self.deaf_to:
            return answer_to(TAKEN)
        said = {}

        def one(rank):
            said[rank] = self.updaters[rank].ask(verb, int(version)) or TAKEN

        threads = [threading.Thread(target=one, args=(rank,)) for rank in self.reached]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # The server answers with what rank 0 says.
        return answer_to(said[0])

    def wait_as_gated(self):
        """Serve requests one by one in one thread. Return what ends that."""
        post, calls, ended = self.post, queue.SimpleQueue(), threading.Event()

        def enqueue(path, body):
            answer = queue.SimpleQueue()
            calls.put((path, body, answer))
            return answer.get(timeout=10)

        def wait():
            while not ended.is_set():
                with suppress(queue.Empty):
                    path, body, answer = calls.get(timeout=0.001)
                    answer.put(post(path, body))

        thread = threading.Thread(target=wait)
        thread.start()
        self.post = enqueue

        def end():
            ended.set()
            thread.join()

        return end

    def holds(self, weights, dtype=torch.float32):
        tp = len(self.ranks)
        expected = [fused(weights, rank, tp, dtype) for rank in range(tp)]
        return all(
            torch.equal(parameter.cpu(), expected[rank][name])
            for rank, parameters in enumerate(self.ranks)
            for name, parameter in parameters.items()
        )


def corrupt(engine, name, rank=-1):
    flat = engine.ranks[rank][name].data.reshape(-1)
    bits = flat.view(torch.int32 if flat.element_size() == 4 else torch.int16)
    bits[3] ^= 1 << 16 if flat.element_size() == 4 else 1


@pytest.fixture(autouse=True)
def engines_closed(tmp_path):
    yield
    while HandMadeEngine.open:
        HandMadeEngine.open.pop().close()
