"""The Ray cluster that carries a fleet: its actors outlive who placed them, and are found by name."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from typing import Any

from rose.errors import UserError
from rose.runtime.errors import DeploymentError, PartDiedError
from rose.runtime.service.local_ray import ENVIRONMENT

#: Enough to be told apart, and so little that any number of actors fit on a host.
_SHARE = 0.001
#: A Ray that is being started listens after so long. Ray itself would try for minutes.
_LISTENS_S = 20.0
_CONNECT_S = 2.0
#: What Ray takes from an actor's own environment, where its node was started without.
_ENVIRONMENT = {name: ENVIRONMENT[name] for name in ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_worker_niceness")}


class UnreachableError(Exception):
    """An actor cannot be asked now: its host is away, or it is being started again."""


class Fabric:
    """One Ray cluster, seen from a process that has joined it."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def join(self, address: str) -> None:
        """Join the cluster at `address` from one of its hosts. Raises UserError for what is no address, DeploymentError
        if there is no cluster."""
        _wait_listening(address)
        # Read when Ray is imported. That a process died is in Ray's logs, and whoever watches it says so.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^A worker died or was killed")
        import ray

        # Ray takes over the signals of the process that joins it; they are the user's.
        ours = threading.current_thread() is threading.main_thread()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if ours else {}
        try:
            # Who was interrupted in the middle of something else may have joined already.
            ray.shutdown()
            # No `num_cpus`: a cluster that is there has what it has.
            ray.init(
                address=address,
                namespace=self._namespace,
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=True,
            )
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise DeploymentError(
                f"no Ray cluster can be joined at {address} from this host: {str(error).splitlines()[0]}. Start Ray "
                f"here (`ray start --address={address}`), or correct `--address`"
            ) from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @property
    def node_address(self) -> str:
        """IP address of the Ray node that this process is on."""
        import ray

        address: str = ray.util.get_node_ip_address()
        return address

    @property
    def address(self) -> str:
        """Where any of the cluster's hosts can join it."""
        import ray

        address: str = ray.get_runtime_context().gcs_address
        return address

    def nodes(self) -> set[str]:
        """What the nodes that are there can be told by: `node:ADDRESS` and their custom resources."""
        import ray

        return {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}

    def own_resources(self) -> set[str]:
        """What the node of this process can be told by, as in `nodes`."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        return {name for node in ray.nodes() if node["NodeID"] == own for name in node["Resources"]}

    def find(self, name: str) -> Any | None:
        """The actor of this name; None if there is none, or it is gone for good."""
        import ray

        try:
            return ray.get_actor(name, namespace=self._namespace)
        except ValueError:
            return None

    def place(self, name: str, cls: type, *arguments: object, resource: str, threads: int = 4) -> Any:
        """The actor of this name; one of `cls` is started if there is none. It runs on the node that has `resource`,
        waits for it while it is away, and is started again whenever it ends, until it is ended by `end`."""
        import ray

        options = {
            "name": name,
            "namespace": self._namespace,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_restarts": -1,
            "max_concurrency": threads,
            "num_cpus": 0,
            "resources": {resource: _SHARE},
            "runtime_env": {"env_vars": _ENVIRONMENT},
        }
        return ray.remote(cls).options(**options).remote(*arguments)

    def ask(self, actor: Any, method: str, *arguments: object, timeout_s: float) -> Any:
        """What a method of an actor returns. Raises what it raises, UnreachableError, and PartDiedError if the actor is
        gone for good."""
        return self.answer(getattr(actor, method).remote(*arguments), timeout_s)

    def answer(self, call: Any, timeout_s: float) -> Any:
        """As `ask`, of a call that was made."""
        import ray

        try:
            return ray.get(call, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except ray.exceptions.GetTimeoutError:
            raise UnreachableError(f"it did not answer within {timeout_s:.0f} s") from None
        except ray.exceptions.ActorUnavailableError:
            raise UnreachableError("it is being started again, or its host is away") from None
        except ray.exceptions.RayActorError as error:
            # Of one that could not begin, the last line of its traceback says why.
            why = str(error).strip().splitlines()[-1] if error.actor_init_failed else str(error)
            raise PartDiedError(why) from None

    def end(self, actor: Any, *, again: bool = False) -> None:
        """End an actor for good, wherever it is; or, with `again`, have it started again."""
        import ray

        ray.kill(actor, no_restart=not again)

    def leave(self) -> None:
        """Go from the cluster. What was placed on it stays."""
        import ray

        ray.shutdown()


def listens(address: str) -> bool:
    """Return whether a Ray head, or another server, listens at an address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def _wait_listening(address: str) -> None:
    """Raises UserError for what is no address, DeploymentError if nothing listens there."""
    if (parts := re.fullmatch(r"\[?([^\s/\[\]]+)\]?:(\d{1,5})", address)) is None:
        raise UserError(f"--address {address!r} must be a host and port of Ray's head, such as 10.0.0.1:6379")
    until = time.monotonic() + _LISTENS_S
    while True:
        try:
            socket.create_connection((parts[1], int(parts[2])), timeout=_LISTENS_S).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() > until or isinstance(error, (socket.gaierror, OverflowError)):
                raise DeploymentError(
                    f"no Ray cluster is at {address} ({error}): start Ray's head there (`ray start --head`), or "
                    "correct `--address`. A fleet on one host that is new, or was put down, needs none: it has a Ray "
                    "of its own"
                ) from None
        time.sleep(0.5)
