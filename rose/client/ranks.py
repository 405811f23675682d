"""The ranks of a trainer that publish together, led by rank 0."""

from __future__ import annotations

import fcntl
import secrets
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rose.client.address import ClientError
from rose.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_T = TypeVar("_T")
_LOCK = "ranks.lock"


class Ranks:
    """The ranks of `group`, which all construct this object at once. Without a group, there is one rank."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.rank, self.size = 0, 1
        self._group: ProcessGroup | None = None
        if group is not None:
            import torch.distributed as dist

            # A group of its own: the trainer's collectives may run in another thread, or on its accelerators.
            members = dist.get_process_group_ranks(group)
            self._group = dist.new_group(members, backend="gloo", use_local_synchronization=True)
            self.rank, self.size = dist.get_rank(self._group), len(members)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def shared(self) -> bool:
        return self._group is not None

    def share(self, work: Callable[[], _T]) -> list[_T]:
        """Run `work` on this rank, and return the results of all ranks. If `work` fails on a rank, all ranks raise the
        first failure. If a rank is gone, they raise ClientError."""
        if self._group is None:
            return [work()]
        import torch.distributed as dist

        result: _T | None = None
        failure: UserError | None = None
        try:
            result = work()
        except UserError as error:
            failure = error
        except Exception as error:
            failure = ClientError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        kind = None if failure is None else type(failure)
        everywhere: list[tuple[_T, type[UserError] | None, str]] = [None] * self.size  # type: ignore[list-item]
        try:
            dist.all_gather_object(everywhere, (result, kind, str(failure)), group=self._group)
        except RuntimeError as error:
            raise failure or ClientError(f"a rank of the trainer is gone: see its output ({error})")
        alike = len({reason for _, _, reason in everywhere}) == 1
        for rank, (_, kind, reason) in enumerate(everywhere):
            if kind is not None:
                raise kind(reason if alike else f"rank {rank}: {reason}") from (failure if rank == self.rank else None)
        return [result for result, _, _ in everywhere]

    def check_folder(self, folder: Path) -> None:
        if not self.shared:
            return
        path, token = folder / _LOCK, secrets.token_hex()
        with ExitStack() as held:

            def take() -> str:
                if self.leads:
                    file = held.enter_context(path.open("w"))
                    fcntl.flock(file, fcntl.LOCK_EX)
                    file.write(token)
                    file.flush()
                return token

            expected = self.share(take)[0]
            self.share(lambda: None if self.leads else _check_lock(path, expected))

    def leave(self) -> None:
        """Wait until all ranks have called this. If a rank calls `share` instead, that call fails."""

        def left() -> None:
            raise ClientError("it has left the run")

        if self.shared:
            with suppress(UserError):
                self.share(left)
            self._group = None

    def drop(self) -> None:
        self._group = None


def _check_lock(path: Path, token: str) -> None:
    with suppress(OSError):
        with path.open("r+") as file:
            if file.read() == token:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
    problem = f"host {socket.gethostname()!r} cannot see rank 0's folder {str(path.parent)!r} or its locks"
    raise ClientError(f"{problem}: give `folder` on a file system that all hosts of the trainer share")
