"""Names, for the ledger, the mechanisms by which two engines share a device."""

from typing import Any

#: SGLang's names of the ways to run a phase.
_EAGER = "disabled"
_WHOLE_STEP = "full"


def compute_facts(scheduler: Any, *, gated: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"gated": gated}
    if str(getattr(scheduler, "device", "cpu")) == "cpu":
        return facts
    import torch

    from rose.runtime.platform import sgl_kernel_absent
    from rose.runtime.platform.gpu import mps

    facts |= {"mps": mps.in_use(torch.cuda.current_device()), "native_kernels": sgl_kernel_absent.in_use()}
    if gated:
        # Only ROSE's own engines have an SGLang version with this module.
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
    """Return the name of the mechanism that divides a device's compute time. If `gated` is False, the engine has the
    device alone. With `native_kernels`, torch and Triton replace SGLang's compiled kernels."""
    marks = {"native-kernels": native_kernels, "mps": mps, "idle-class": gated and preemptible}
    parts = [name for name, holds in marks.items() if holds]
    if not gated:
        return "+".join([*parts, "exclusive"])
    # A full decode graph is captured in layers with the gate between them. Any other graph may be replayed whole: then
    # the gate only runs before a step.
    if prefill_graphs != _EAGER or decode_graphs not in (_EAGER, _WHOLE_STEP):
        return "+".join([*parts, "step-yield"])
    return "+".join([*parts, *(["layer-graphs"] if decode_graphs == _WHOLE_STEP else []), "layer-yield"])


def memory_mechanism(*, pool: str | None, leased: bool) -> str:
    return pool or ("leased+budget" if leased else "budget")
