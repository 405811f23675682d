"""The local Ray that a deployment runs on: start it, run actors on it, wait for them without going deaf, stop it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any, ClassVar

from rose.errors import UserError

_POLL_S = 0.5


class DeploymentError(UserError):
    """A part of the running deployment failed; the message says which and what its log says."""

    exit_code: ClassVar[int] = 1


class PartDiedError(Exception):
    """The process of an actor is gone. `unborn`: because what makes it raised an error."""

    def __init__(self, why: str, *, unborn: bool = False) -> None:
        super().__init__(why)
        self.unborn = unborn


class Cluster:
    """One Ray, for one run."""

    def start(self) -> None:
        """Start Ray on this host, for this run alone."""
        # Read when Ray is imported. That a process died is in Ray's logs, and whoever watches it says so.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^A worker died or was killed")
        import ray

        # Actors have a niceness of their own; Ray would start them with 15, from which not everybody may go back.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # It would hide the GPUs from actors that ask it for none, and with them from the engines that they start.
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        # Ray takes over the signals of the process that starts it; they are the user's.
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        ray.init(
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=True,
        )
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def spawn(self, cls: type, *args: object, threads: int = 1, **kwargs: object) -> Any:
        """An actor of `cls` in a process of its own; its methods are called with `.remote`."""
        import ray

        # With more than one thread a call can get through while another runs, such as `stop` while it starts.
        options = {} if threads == 1 else {"max_concurrency": threads}
        return ray.remote(num_cpus=0, max_restarts=0, **options)(cls).remote(*args, **kwargs)

    def poll(self, calls: Sequence[Any], timeout_s: float = _POLL_S) -> list[Any]:
        """Wait at most a moment for all calls; returns those that have ended by then."""
        import ray

        ended: list[Any] = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)[0] if calls else []
        return ended

    def result(self, call: Any) -> Any:
        """The result of a call that has ended. Raises what it raised, and PartDiedError if its process died."""
        import ray

        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except ray.exceptions.RayActorError as error:
            why = str(error)
            raise PartDiedError(why, unborn="its creation task" in why) from None

    def kill(self, actor: Any) -> None:
        """End an actor's process, if it has not ended."""
        import ray

        ray.kill(actor)

    def settle(self, calls: Sequence[Any], timeout_s: float) -> None:
        """Wait for calls whose outcome no longer matters."""
        import ray

        if calls:
            ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)

    @property
    def running(self) -> bool:
        import ray

        return bool(ray.is_initialized())

    def stop(self) -> None:
        """End Ray and every process on it."""
        import ray

        ray.shutdown()
