import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rose import client
from rose.runtime.engines.ports import free_port
from tests.client.fleet import MODEL

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


class Trainer:
    def __init__(self, rank: int, ranks: int, url: str, folder: Path) -> None:
        self.rank, self.url, self.folder = rank, url, folder
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3, bias=False))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (ranks,)))

    def open_run(self, **more):
        return client.open_run(self.url, name="ranks", model=MODEL, group=dist.group.WORLD, **more)

    def update(self):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1.01)

    def save(self, version):
        whole = {name: tensor.full_tensor() for name, tensor in self.model.state_dict().items()}
        if self.rank == 0:
            save_file(whole, self.folder / f"{version}.safetensors")

    def failure(self, state, version=None):
        try:
            return self.run.publish(state, version)
        except client.ClientError.__base__ as error:
            return f"{type(error).__name__} {error}"


def run_ranks(
    program: Callable[..., object], url: str, folder: Path, *, ranks: int = 2
) -> list[tuple[int | None, object]]:
    port = free_port()
    started = []
    for rank in range(ranks):
        receiving, sending = _processes.Pipe(duplex=False)
        process = _processes.Process(target=_rank, args=(rank, ranks, port, url, folder, program, sending), daemon=True)
        process.start()
        sending.close()
        started.append((process, receiving))
    results = []
    try:
        for process, receiving in started:
            returned: object = None
            with suppress(EOFError):
                returned = receiving.recv() if receiving.poll(120) else "it returned nothing for two minutes"
            process.join(30)
            results.append((process.exitcode, returned))
    finally:
        for process, _ in started:
            process.kill()
    return results


def _rank(rank, ranks, port, url, folder, program, sending):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    sending.send(program(Trainer(rank, ranks, url, folder)))
