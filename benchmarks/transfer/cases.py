"""Changes of many kinds: bytes of each way, and time from array to array. A time is CPU seconds to encode and apply
over the cores, and the bytes over the link; ways take turns, and the least of all rounds counts."""

import ctypes
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.shared import CACHE
from benchmarks.transfer import made_up
from benchmarks.transfer.chain import RATES, Chain, one_thread, recorded
from benchmarks.transfer.scope import Scope
from benchmarks.transfer.ways import COO, DENSE, SMALL, XOR, ZSTD, Way, ours_at
from rose.accept.report import ROOT, Report
from rose.runtime.models import models
from rose.runtime.platform import cpu
from rose.terminal import echo
from rose.transfer.codec.bits import to_bits
from rose.transfer.codec.choice import Link
from rose.transfer.codec.header import Bits, read_header

OTHERS = (XOR, ZSTD, DENSE, COO)
GBITS_PER_S = (0.1, 1, 10)
CORES = len(os.sched_getaffinity(0))
_POSSIBLE = 0.45  #: Up to this share of XOR's bytes, the entropy leaves room for a code of half of them.
_SMALL_ELEMENTS = 1 << 16
_LARGE, _SMALL = "large tensors", "tensors below 128 KiB"  #: A call takes longer than the elements of a small tensor.
#: Options of malloc: freed memory stays in the process, for otherwise chance decides which way has to map it anew.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ALL_MEMORY = -1, -3, 1 << 30
_TOKENS = 128
_EXPONENTS = 256
_Pairs = list[tuple[Bits, Bits]]


def measure(report: Report, _: Path, scope: Scope) -> None:
    links = {f"{rate:g} Gbit/s": Link(rate * 1e9 / 8, CORES) for rate in GBITS_PER_S}
    slowest = next(iter(links))
    slower: dict[str, dict[str, float]] = {_LARGE: dict.fromkeys(links, 0.0)}
    detail = {}
    for name, pairs in cases(scope):
        ours = {link: ours_at(way) for link, way in links.items()}
        taken = _taken({**{way.name: way for way in (*OTHERS, SMALL)}, **ours}, pairs, scope.cases_rounds)
        xor_bytes = taken[XOR.name]["bytes"]
        changed = sum(int(np.count_nonzero(base != new)) for base, new in pairs)
        bound = sum(entropy_bits(base, new) for base, new in pairs) / 8 / xor_bytes
        size = taken[slowest]["bytes"] / xor_bytes
        what = f"{name}: bytes at {slowest} against XOR + zstd-1; entropy allows {bound:.2f}"
        report.claim(what, size, "x", 0.5 if bound <= _POSSIBLE else 1, "lower")
        against_best = {
            link: round(_seconds(taken[link], way) / min(_seconds(taken[other.name], way) for other in OTHERS), 3)
            for link, way in links.items()
        }
        tensors = _LARGE if sum(new.size for _, new in pairs) / len(pairs) > _SMALL_ELEMENTS else _SMALL
        most = slower.setdefault(tensors, dict.fromkeys(links, 0.0))
        slower[tensors] = {link: max(most[link], ratio) for link, ratio in against_best.items()}
        detail[name] = {
            "changed_share": round(changed / sum(new.size for _, new in pairs), 5),
            "entropy_against_xor": round(bound, 3),
            "time_against_best": against_best,
            "dense_bytes": sum(new.nbytes for _, new in pairs),
            "chosen": {
                link: sorted({read_header(way.encode(*p))[0].encoding for p in pairs}) for link, way in ours.items()
            },
            "ways": taken,
        }
    for tensors, most in slower.items():
        for link, ratio in most.items():
            report.claim(
                f"time at {link} against the best of the others, worst case of {tensors}", ratio, "x", 1, "lower"
            )
    report.detail["cases"] = {"cores": CORES, "time": "CPU seconds", **detail}


def _seconds(taken: dict[str, float], link: Link) -> float:
    return (taken["encode_s"] + taken["apply_s"]) / link.cores + taken["bytes"] / link.bytes_per_s


def _taken(ways: dict[str, Way], pairs: _Pairs, rounds: int) -> dict[str, dict[str, float]]:
    taken: dict[str, dict[str, float]] = {}
    for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        ctypes.CDLL(None).mallopt(option, _ALL_MEMORY)
    for number in range(rounds + 1):  # The first round loads the codec, and touches memory.
        for name, way in ways.items():
            began_s = time.process_time()
            sent = [way.encode(base, new) for base, new in pairs]
            encode_s = time.process_time() - began_s
            held, sent_bytes = [base.copy() for base, _ in pairs], sum(map(len, sent))
            began_s = time.process_time()
            for array, data in zip(held, sent, strict=True):
                way.apply(array, data)
            apply_s = time.process_time() - began_s
            del sent  # Before the next way is timed, for freeing takes time too.
            assert all(np.array_equal(array, new) for array, (_, new) in zip(held, pairs, strict=True)), name
            before = taken.get(name, {}) if number > 1 else {}
            taken[name] = {
                "bytes": sent_bytes,
                "encode_s": round(min(encode_s, before.get("encode_s", encode_s)), 6),
                "apply_s": round(min(apply_s, before.get("apply_s", apply_s)), 6),
            }
    return taken


def cases(scope: Scope) -> Iterator[tuple[str, _Pairs]]:
    if scope.cases_steps:
        for rate in (1e-5, 1e-6):
            yield f"AdamW at {rate:g}, SmolLM2", _fine_tuned(rate, scope)
        for name, rate in RATES.items():
            yield f"FrozenLake at {name}", _last_step(recorded(rate))
    rng = np.random.default_rng(0)
    rows = scope.cases_elements >> 10
    masters = rng.standard_normal((rows, 1024), dtype=np.float32) * np.float32(made_up.SCALE)
    base = made_up.bf16(masters).reshape(-1)
    for scale in (3e-7, 1e-5, 3e-4):
        left, right = (rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, 16), (16, 1024)))
        merged = made_up.bf16(masters + np.float32(scale) * (left @ right)).reshape(-1)
        yield f"LoRA merge, {np.mean(merged != base):.0%} changed", [(base, merged)]
    yield "all by one ulp", [(base, base + np.uint16(1))]
    flips = np.where(rng.random(base.size) < 0.01, 0x8000, 0).astype(np.uint16)
    yield "1% of signs", [(base, base ^ flips)]
    yield "all signs", [(base, base ^ np.uint16(0x8000))]
    after = masters + rng.standard_normal(masters.shape, dtype=np.float32) * np.float32(1e-6)
    yield "fp32, all changed", [(masters.view(np.uint32).reshape(-1), after.view(np.uint32).reshape(-1))]
    yield "random", [(base, rng.integers(0, 1 << 16, base.size, dtype=np.uint16))]
    other = base.copy().reshape(rows, 1024)
    replaced = rng.choice(rows, max(rows * 300 // 20_000, 1), replace=False)
    other[replaced] = other[rng.permutation(rows)[: replaced.size]]
    yield "300 of 20,000 rows", [(base, other.reshape(-1))]


def _last_step(chain: Chain) -> _Pairs:
    """Return the tensors of the last step that changed any."""
    pairs = [(base, new) for base, new in itertools.pairwise(chain.versions) if not np.array_equal(base, new)]
    before, after = (list(chain.parts(np.array(row))) for row in pairs[-1])
    return list(zip(before, after, strict=True))


def _fine_tuned(rate: float, scope: Scope) -> _Pairs:
    """Return tensors of SmolLM2 before and after an AdamW step on this project's documentation."""
    cpu.define_torchvision()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models.smollm2(CACHE, lambda text: echo(text, err=True))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"][0]
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    chosen, size = {}, 0
    for name, parameter in reversed(list(model.named_parameters())):
        if size < scope.cases_elements:
            chosen[name], size = parameter, size + parameter.numel()
    before: dict[str, Bits] = {}
    for step in range(scope.cases_steps):
        before = {name: _published(name, parameter) for name, parameter in chosen.items()}
        batch = ids[_TOKENS * step : _TOKENS * (step + 1)][None]
        with one_thread():
            model(input_ids=batch, labels=batch).loss.backward()
            optimiser.step()
        optimiser.zero_grad()
    return [(before[name], _published(name, parameter)) for name, parameter in chosen.items()]


def _published(name: str, parameter: torch.Tensor) -> Bits:
    return to_bits(name, parameter.detach().to(torch.bfloat16)).reshape(-1).copy()


def entropy_bits(base: Bits, new: Bits) -> float:
    """Return elements times the entropy of an element's change given the base's exponent, for bf16 and fp32. A change
    is a number of ULPs, or the differing bits: the smaller entropy counts. Changes in clusters may take less."""
    half, mantissa_bits = (np.uint16(1 << 15), 7) if base.itemsize == 2 else (np.uint32(1 << 31), 23)
    exponents = base >> mantissa_bits & _EXPONENTS - 1
    places = np.flatnonzero(base != new)
    before, after = (np.where(bits < half, bits, half - 1 - bits) for bits in (base[places], new[places]))
    of_changed = exponents[places].astype(np.int64)
    sizes = np.bincount(exponents, minlength=_EXPONENTS)
    unchanged = sizes - np.bincount(of_changed, minlength=_EXPONENTS)
    kinds = (
        np.unique(of_changed << 32 | kind, return_counts=True)[1]
        for kind in (after - before, base[places] ^ new[places])
    )
    return _n_log_n(sizes) - _n_log_n(unchanged) - max(map(_n_log_n, kinds))


def _n_log_n(counts: npt.NDArray[np.int64]) -> float:
    some = counts[counts > 0].astype(np.float64)
    return float(np.sum(some * np.log2(some)))
