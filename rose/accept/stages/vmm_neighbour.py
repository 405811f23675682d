"""The other process of the stage `vmm`: it takes memory of the card, checks it and gives it back, as it is asked.

Each request and answer is one packet of JSON on a Unix socket; file descriptors of pieces travel with it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

from rose.accept.report import ROOT

if TYPE_CHECKING:
    from rose.runtime.coserving.kv.device_memory import PieceMemory, Reservation

_PACKET_BYTES = 1 << 16
_DESCRIPTORS = 253
_BLOCK_BYTES = 1 << 30


class Neighbour:
    """That process, seen from the stage's. It ends with this object, or when this process does."""

    def __init__(self, device: str, seconds: float) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(seconds)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, f"--socket={other.fileno()}", f"--device={device}"],
                cwd=ROOT,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, what: str, **arguments: object) -> dict[str, Any]:
        """Its answer. Raises RuntimeError with what went wrong there, and TimeoutError."""
        return self._ask({"what": what, **arguments}, [])

    def hand(self, memory: PieceMemory, handles: list[Any]) -> None:
        """Let it have pieces of `memory`; this process keeps its handles. Raises as `ask` does, and DriverError."""
        descriptors: list[int] = []
        try:
            for handle in handles:
                descriptors.append(memory.export(handle))
            self._ask({"what": "adopt"}, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _ask(self, request: dict[str, object], descriptors: list[int]) -> dict[str, Any]:
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        packet = self._socket.recv(_PACKET_BYTES)
        if not packet:
            raise RuntimeError(f"the other process ended with exit code {self._process.wait(5)} at {request['what']!r}")
        answer: dict[str, Any] = json.loads(packet)
        if "failed" in answer:
            raise RuntimeError(f"the other process, at {request['what']!r}: {answer['failed']}")
        return answer

    def close(self) -> None:
        """End it; what it holds of the card is free then."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


class Taker:
    """What the neighbour does, by the names of its methods."""

    def __init__(self, device: str) -> None:
        import torch

        from rose.runtime.coserving.kv.device_memory import CudaMemory
        from rose.runtime.coserving.kv.host_memory import HostMemory

        self._torch = torch
        if device != "cpu":
            torch.cuda.set_device(device)
        self._memory: PieceMemory = HostMemory() if device == "cpu" else CudaMemory(torch.device(device))
        self._filled: list[torch.Tensor] = []
        self._taken: Reservation | None = None
        self._pieces = self._piece_bytes = 0
        self._handles: list[Any] = []

    def ready(self, _descriptors: list[int]) -> dict[str, object]:
        """Its own context is on the card by now."""
        return {}

    def free(self, _descriptors: list[int]) -> dict[str, object]:
        return {"free_bytes": self._memory.free_bytes()}

    def fill(self, _descriptors: list[int], leave_bytes: int) -> dict[str, object]:
        """Have all of the card but `leave_bytes`; nothing on CPU cores, whose memory is everybody's."""
        while self._memory.device.type != "cpu" and self._memory.free_bytes() - _BLOCK_BYTES >= leave_bytes:
            block = self._torch.empty(_BLOCK_BYTES, dtype=self._torch.uint8, device=self._memory.device)
            self._filled.append(block)
        return {"filled_bytes": len(self._filled) * _BLOCK_BYTES}

    def take(self, _descriptors: list[int], pieces: int, piece_bytes: int, spare_bytes: int) -> dict[str, object]:
        """As an engine does: all of it, if the device then still has `spare_bytes`."""
        from rose.runtime.coserving.kv.device_memory import Reservation

        if self._memory.free_bytes() - pieces * piece_bytes < spare_bytes:
            return {"taken_bytes": 0}
        self._taken = Reservation(self._memory, pieces, piece_bytes)
        self._taken.map(0, pieces)
        self._pieces, self._piece_bytes = pieces, piece_bytes
        return {"taken_bytes": self._taken.mapped_bytes}

    def adopt(self, descriptors: list[int]) -> dict[str, object]:
        self._handles += [self._memory.adopt(descriptor) for descriptor in descriptors]
        return {}

    def map_adopted(self, _descriptors: list[int], piece_bytes: int) -> dict[str, object]:
        """All pieces that were handed over, whose handles are kept."""
        from rose.runtime.coserving.kv.device_memory import Reservation

        self._pieces, self._piece_bytes = len(self._handles), piece_bytes
        self._taken = Reservation(self._memory, self._pieces, piece_bytes)
        self._taken.map(0, self._pieces, self._handles)
        return {"taken_bytes": self._taken.mapped_bytes}

    def check(self, _descriptors: list[int], first: int) -> dict[str, object]:
        """How many pieces are right: they hold first, first + 1, ... (anything, if it is negative), and take more."""
        torch = self._torch
        assert self._taken is not None, "nothing was taken"
        tensor = self._taken.tensor((self._pieces, self._piece_bytes // 4), torch.int32)
        numbers = torch.arange(self._pieces, dtype=torch.int32, device=self._memory.device) + max(0, first)
        right = torch.ones(self._pieces, dtype=torch.bool, device=self._memory.device)
        if first >= 0:
            right &= (tensor[:, 0] == numbers) & (tensor[:, -1] == numbers)
        tensor.copy_((numbers + 1)[:, None])
        right &= (tensor[:, 0] == numbers + 1) & (tensor[:, -1] == numbers + 1)
        return {"right": int(right.sum())}

    def give(self, _descriptors: list[int]) -> dict[str, object]:
        assert self._taken is not None, "nothing was taken"
        self._taken.close()
        self._taken = None
        return {}


def main() -> None:
    """Answer until the other end is closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--device", required=True)
    given = parser.parse_args()
    taker, broken = None, None
    try:
        taker = Taker(given.device)
    except Exception as error:
        traceback.print_exc()
        broken = f"{type(error).__name__}: {error}"
    with socket.socket(fileno=given.socket) as stage:
        while True:
            packet, descriptors, _, _ = socket.recv_fds(stage, _PACKET_BYTES, _DESCRIPTORS)
            if not packet:
                return
            answer: dict[str, object]
            try:
                request = json.loads(packet)
                answer = {"failed": broken}
                if taker is not None:
                    answer = getattr(taker, request.pop("what"))(descriptors, **request)
            except Exception as error:
                traceback.print_exc()
                answer = {"failed": f"{type(error).__name__}: {error}"}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            stage.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
