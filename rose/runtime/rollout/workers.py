"""The worker processes of a trainer: they play its games, and one that dies is started again."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait

from rose.errors import UserError
from rose.runtime.rollout.worker import ERRORS, Failed, Game, Played, Setting, Share

#: A worker that dies more often than this within a minute is given up.
DEATHS_MAX, DEATHS_WITHIN_S = 5, 60.0
_END_S = 5.0
#: Not `-m`: what it sends would be of its `__main__`.
_PROGRAM = "from rose.runtime.rollout.worker import main; main()"


def first_name(trajectory_id: str) -> str:
    """Of a game, before it was played again."""
    return trajectory_id.partition("~")[0]


class WorkerError(UserError):
    """Workers die as fast as they are started."""

    exit_code = 1


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    #: What it was sent and has not played, by trajectory id, with its step and oldest version.
    playing: dict[str, tuple[Share, Game]] = field(default_factory=dict)


class Workers:
    """`count` processes in `setting`. A context manager: they end with it, and with this process however it ends."""

    def __init__(self, setting: Setting, count: int, say: Callable[[str], None]) -> None:
        self._setting, self._say = setting, say
        self._workers = [self._start() for _ in range(count)]
        self._deaths: deque[float] = deque()
        self._repeated = itertools.count(1)

    def play(self, step: int, version_min: int, games: Sequence[Game]) -> None:
        """Have the games of a step played; groups are dealt out whole, one worker after another."""
        groups = list(dict.fromkeys(game.group_id for game in games))
        place = {group: index % len(self._workers) for index, group in enumerate(groups)}
        for index, worker in enumerate(list(self._workers)):
            share = Share(
                step=step, version_min=version_min, games=[game for game in games if place[game.group_id] == index]
            )
            self._send(worker, share)

    def play_again(self, step: int, version_min: int, games: Sequence[Game]) -> None:
        """As `play`, under other names: what was made of these games is in the ledger under the names that they had."""
        self.play(step, version_min, self._renamed(games))

    def collect(self, timeout_s: float) -> Iterator[Played]:
        """The games that are over, after at most `timeout_s` if none is; what a worker had that died is played again
        under other names.

        Raises the ClientError that a worker's call did, and WorkerError.
        """
        ready = wait([worker.connection for worker in self._workers], timeout_s)
        for worker in [worker for worker in self._workers if worker.connection in ready]:
            try:
                while worker.connection.poll():
                    message = worker.connection.recv()
                    if isinstance(message, Failed):
                        raise ERRORS[message.kind](message.message)
                    assert isinstance(message, Played)
                    worker.playing.pop(message.game.trajectory_id)
                    yield message
            except (EOFError, OSError):
                self._replace(worker)

    def close(self) -> None:
        """End all workers; what they play is given up."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            try:
                worker.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for the trainer, which closes the connection.
                start_new_session=True,
            )
        worker = _Worker(process, Connection(ours.detach()))
        worker.connection.send(self._setting)
        return worker

    def _send(self, worker: _Worker, share: Share) -> None:
        worker.playing |= {game.trajectory_id: (share, game) for game in share.games}
        try:
            worker.connection.send(share)
        except OSError:
            self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - DEATHS_WITHIN_S:
            self._deaths.popleft()
        code = worker.process.wait()
        if len(self._deaths) > DEATHS_MAX:
            raise WorkerError(
                f"rollout workers died {len(self._deaths)} times within {DEATHS_WITHIN_S:.0f} s, the last with exit "
                f"code {code}: what they printed says why"
            )
        self._say(f"a rollout worker died (exit code {code}) and is started again")
        worker.connection.close()
        fresh = self._start()
        self._workers[self._workers.index(worker)] = fresh
        # What it had begun of a trajectory is in the ledger under the old name.
        shares: dict[int, list[Game]] = {}
        versions: dict[int, int] = {}
        for share, game in worker.playing.values():
            versions[share.step] = share.version_min
            shares.setdefault(share.step, []).append(game)
        for step, games in sorted(shares.items()):
            self._send(fresh, Share(step=step, version_min=versions[step], games=self._renamed(games)))

    def _renamed(self, games: Sequence[Game]) -> list[Game]:
        tries = next(self._repeated)
        return [replace(game, trajectory_id=f"{first_name(game.trajectory_id)}~{tries}") for game in games]
