"""The Ray cluster of a fleet. Its named actors outlive the process that started them."""

import os
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from rose.errors import UserError
from rose.runtime.errors import DeploymentError, PartDiedError
from rose.runtime.service.local_ray import ENVIRONMENT

_SHARE = 0.001  # Small enough for any number of actors on a host.
_LISTENS_S = 20.0  # Wait for a starting Ray; Ray itself would try for minutes.
#: Variables that an actor may set where its node lacks them.
_ENVIRONMENT = {name: ENVIRONMENT[name] for name in ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_worker_niceness")}


class UnreachableError(Exception):
    """The actor is restarting, or its host cannot be reached."""


class Fabric:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def join(self, address: str) -> None:
        """Join the cluster, to which this host must belong. Raises UserError or DeploymentError."""
        _wait_listening(address)
        # Ray reads this at import. Its logs have the deaths of processes.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^A worker died or was killed")
        import ray

        main_thread = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGINT, signal.SIGTERM) if main_thread else ()
        handlers = {number: signal.getsignal(number) for number in signals}
        try:
            ray.shutdown()  # An interrupted call may have joined already.
            ray.init(address=address, namespace=self._namespace, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            advice = f"Start Ray here (`ray start --address={address}`), or correct `--address`"
            raise DeploymentError(f"cannot join Ray at {address}: {str(error).splitlines()[0]}. {advice}") from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @property
    def node_address(self) -> str:
        return str(_ray().util.get_node_ip_address())

    @property
    def address(self) -> str:
        return str(_ray().get_runtime_context().gcs_address)

    def nodes(self) -> set[str]:
        return {name for node in _ray().nodes() if node["Alive"] for name in node["Resources"]}

    def own_resources(self) -> set[str]:
        node_id = _ray().get_runtime_context().get_node_id()
        return {name for node in _ray().nodes() if node["NodeID"] == node_id for name in node["Resources"]}

    def find(self, name: str) -> Any | None:
        with suppress(ValueError):
            return _ray().get_actor(name, namespace=self._namespace)
        return None

    def place(self, name: str, cls: type, *arguments: object, resource: str) -> Any:
        """Return the actor with this name. Start it if it is missing. Ray restarts it until `end` is called."""
        options = {
            "name": name,
            "namespace": self._namespace,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_restarts": -1,
            "max_concurrency": 4,
            "num_cpus": 0,
            "resources": {resource: _SHARE},
            "runtime_env": {"env_vars": _ENVIRONMENT},
        }
        return _ray().remote(cls).options(**options).remote(*arguments)

    def answer(self, call: Any, timeout_s: float) -> Any:
        ray = _ray()
        try:
            return ray.get(call, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except ray.exceptions.GetTimeoutError:
            raise UnreachableError(f"it did not answer within {timeout_s:.0f} s") from None
        except ray.exceptions.ActorUnavailableError:
            raise UnreachableError("it is restarting, or its host cannot be reached") from None
        except ray.exceptions.RayActorError as error:
            # The last line of a failed constructor's traceback is the reason.
            why = str(error).strip().splitlines()[-1] if error.actor_init_failed else str(error)
            raise PartDiedError(why) from None

    def end(self, actor: Any, *, again: bool = False) -> None:
        _ray().kill(actor, no_restart=not again)

    def leave(self) -> None:
        _ray().shutdown()


def _ray() -> Any:
    import ray

    return ray


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError, OverflowError), socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
        return True
    return False


class GcsWatch:
    """Watches whether Ray's central service, the GCS, answers. Without the GCS, Ray cannot restart parts of a fleet."""

    def __init__(self, address: str, host: str, look_s: float = 2.0) -> None:
        self._address, self._host, self._look_s = address, host, look_s
        self._since: str | None = None
        threading.Thread(target=self._watch, name="gcs", daemon=True).start()

    def fault(self) -> str | None:
        if (since := self._since) is None:
            return None
        problem = f"Ray's GCS on {self._host} ({self._address}) has not answered since {since} UTC. Lending continues"
        return f"{problem}, but dead parts do not restart. Run `rose up`. If the Ray is your own, start it first"

    def _watch(self) -> None:
        while True:
            if listens(self._address):
                self._since = None
            elif self._since is None:
                self._since = time.strftime("%H:%M:%S", time.gmtime())
            time.sleep(self._look_s)


def _wait_listening(address: str) -> None:
    if re.fullmatch(r"\[?[^\s/\[\]]+\]?:\d{1,5}", address) is None:
        raise UserError(f"--address {address!r} must be a host and port of Ray's head, such as 10.0.0.1:6379")
    until = time.monotonic() + _LISTENS_S
    while not listens(address):
        if time.monotonic() > until:
            advice = "start Ray's head there (`ray start --head`), or correct `--address`. A fleet on one host needs no"
            raise DeploymentError(f"no Ray cluster is at {address}: {advice} address: `rose up` starts its Ray")
        time.sleep(0.5)
