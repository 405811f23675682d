"""What the ledger calls the means by which an engine shares its device: from what SGLang made of its arguments and from
what its process runs under, never from what was asked for."""

from __future__ import annotations

from typing import Any

#: SGLang's names of the ways to run a phase.
_EAGER = "disabled"
_WHOLE_STEP = "full"


def compute_facts(scheduler: Any, *, gated: bool) -> dict[str, Any]:
    """Return what `compute_mechanism` is told of the SGLang scheduler that runs in this process."""
    if str(getattr(scheduler, "device", "cpu")) == "cpu":
        return {"gated": gated}
    import torch

    from rose.runtime.engines.gpu import mps, sgl_kernel_absent

    facts: dict[str, Any] = {
        "gated": gated,
        "mps": mps.in_use(torch.cuda.current_device()),
        "native_kernels": sgl_kernel_absent.in_use(),
    }
    if gated:
        # Of engines of ours only: their version is one that tells.
        from sglang.srt.runtime_context import get_exec

        graphs = get_exec().graph.cuda_graph_config
        facts |= {"decode_graphs": str(graphs.decode.backend), "prefill_graphs": str(graphs.prefill.backend)}
    return facts


def compute_mechanism(
    *,
    gated: bool,
    decode_graphs: str = _EAGER,
    prefill_graphs: str = _EAGER,
    mps: bool = False,
    native_kernels: bool = False,
    preemptible: bool = False,
) -> str:
    """Return the name. `decode_graphs` and `prefill_graphs` are SGLang's backends of the phases, as resolved.

    `mps`: the process is a client of NVIDIA's service. `native_kernels`: stand-ins are there for compiled kernels.
    `preemptible`: the operating system takes the engine's cores as soon as serving wakes.
    """
    parts = [
        name
        for name, holds in (
            ("native-kernels", native_kernels),
            ("mps", mps),
            ("idle-class", gated and preemptible),
        )
        if holds
    ]
    if not gated:
        return "+".join([*parts, "exclusive"])
    # A full graph of a decode step is captured in layers, with the gate between them. Any other graph is replayed
    # whole, as far as is known: the gate then runs before a step, and nowhere in it.
    if prefill_graphs != _EAGER or decode_graphs not in (_EAGER, _WHOLE_STEP):
        return "+".join([*parts, "step-yield"])
    return "+".join([*parts, *(["layer-graphs"] if decode_graphs == _WHOLE_STEP else []), "layer-yield"])


def memory_mechanism(*, pool: str | None, leased: bool) -> str:
    """Return the name. `pool`: by what free slots give their memory back ("page-return" to the system, "remap" to the
    device); None if they keep it. `leased`: all of the engine's memory leaves the device."""
    return pool or ("leased+budget" if leased else "budget")
