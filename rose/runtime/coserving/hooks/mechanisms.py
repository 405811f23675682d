"""What the ledger calls the means by which an engine shares its device: from what SGLang made of its arguments and from
what its process runs under, never from what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: SGLang's names of the ways to run a phase.
_EAGER = "disabled"
_WHOLE_STEP = "full"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeFacts:
    """`decode_graphs` and `prefill_graphs`: of a gated engine on a GPU SGLang's backend of the phase, as resolved.
    `mps`: the process is a client of NVIDIA's service. `native_kernels`: stand-ins are there for compiled kernels."""

    gated: bool
    decode_graphs: str = _EAGER
    prefill_graphs: str = _EAGER
    mps: bool = False
    native_kernels: bool = False

    @classmethod
    def of_engine(cls, scheduler: Any, *, gated: bool) -> ComputeFacts:
        """The facts of the SGLang scheduler that runs in this process."""
        if str(getattr(scheduler, "device", "cpu")) == "cpu":
            return cls(gated=gated)
        import torch

        from rose.runtime.engines.gpu import mps, sgl_kernel_absent

        decode, prefill = _graphs() if gated else (_EAGER, _EAGER)
        return cls(
            gated=gated,
            decode_graphs=decode,
            prefill_graphs=prefill,
            mps=mps.in_use(torch.cuda.current_device()),
            native_kernels=sgl_kernel_absent.in_use(),
        )

    def mechanism(self, *, preemptible: bool = False) -> str:
        """`preemptible`: the operating system takes the engine's cores as soon as serving wakes."""
        parts = [
            name
            for name, holds in (
                ("native-kernels", self.native_kernels),
                ("mps", self.mps),
                ("idle-class", self.gated and preemptible),
            )
            if holds
        ]
        return "+".join([*parts, self._yielding])

    @property
    def _yielding(self) -> str:
        if not self.gated:
            return "exclusive"
        # A full graph of a decode step is captured in layers, with the gate between them. Any other graph is replayed
        # whole, as far as is known: the gate then runs before a step, and nowhere in it.
        if self.prefill_graphs != _EAGER or self.decode_graphs not in (_EAGER, _WHOLE_STEP):
            return "step-yield"
        return "layer-yield" if self.decode_graphs == _EAGER else "layer-graphs+layer-yield"


def _graphs() -> tuple[str, str]:
    """SGLang's backends for decode and prefill. Of engines of ours only: their version is one that tells."""
    from sglang.srt.runtime_context import get_exec

    graphs = get_exec().graph.cuda_graph_config
    return str(graphs.decode.backend), str(graphs.prefill.backend)


def memory_mechanism(*, pool: str | None, leased: bool) -> str:
    """`pool`: by what free slots give their memory back ("page-return" to the system, "remap" to the device); None if
    they keep it. `leased`: all of the engine's memory leaves the device."""
    if pool is not None:
        return pool
    return "leased+budget" if leased else "budget"
