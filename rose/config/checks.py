"""Checks combinations of a fleet file's fields, such as two engines on one core."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from rose.config import FleetConfig


#: SGLang's options for ranks, which may be abbreviated.
_RANKS = [f"--{axis}-size" for axis in ("tp", "tensor-parallel", "pp", "pipeline-parallel", "dp", "data-parallel")]


def more_ranks(arguments: Sequence[str]) -> str | None:
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for name, value in itertools.pairwise(words):
        if len(name) > 3 and any(option.startswith(name) for option in _RANKS) and value.isdecimal() and int(value) > 1:
            return f"{name} {value}"
    return None


_PORT_MAX = 65_535
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check(config: FleetConfig) -> None:
    """Raise ValueError if fields conflict. The message names the fields and values, and says what to do."""
    _check_names(config)
    _check_hosts(config)
    _check_hardware(config)
    _check_ranks(config)
    _check_ports(config)
    _check_task(config)


def _check_names(config: FleetConfig) -> None:
    ids = [device.id for device in config.device]
    if len(set(ids)) != len(ids):
        raise ValueError(f"device ids must differ, got {ids}")
    urls = [(device.host, device.serving_url) for device in config.device if device.serving_url]
    if len(set(urls)) != len(urls):
        raise ValueError(f"serving_urls must differ, got {[url for _, url in urls]}")
    tables: dict[str, str] = {}
    for table, rollout in config.rollouts.items():
        if (other := tables.setdefault(rollout.model, table)) != table:
            raise ValueError(f"{other} and {table} both have model {rollout.model!r}: keep one table")
    for device in config.device:
        if device.serving_model not in (None, *config.serving_models):
            raise ValueError(
                f"device {device.id!r} has serving_model {device.serving_model!r}, but there is no "
                f"[{device.serving_table}] table among {list(config.serving_models)}: add one"
            )


def _check_hosts(config: FleetConfig) -> None:
    names = [host.name for host in config.hosts]
    for field, values in (
        ("name", names),
        ("address", [host.address for host in config.hosts if host.address]),
        ("resource", [host.resource for host in config.hosts if host.resource]),
    ):
        if len(set(values)) != len(values):
            raise ValueError(f"values of host.{field} must differ, got {values}")
    for device in config.device:
        if device.host is None and len(names) > 1:
            raise ValueError(f"device {device.id!r} has no host: set `host` to one of {', '.join(names)}")
        if device.host is not None and device.host not in (names or [config.host]):
            problem = f"the [[host]] tables are {names}" if names else "there is no [[host]] table"
            raise ValueError(f"device {device.id!r} is on host {device.host!r}, but {problem}: add a table for it")
    if len(names) < 2:
        return
    for host in config.hosts:
        if host.address is None and host.resource is None:
            raise ValueError(f"host {host.name!r} has neither `address` nor `resource`: give one of them")
    if config.gateway.host in _LOOPBACK:
        raise ValueError(
            f"gateway.host {config.gateway.host!r} is not reachable from other hosts: set it to the address of "
            f"{names[0]!r} or to 0.0.0.0, and set `token`"
        )


def _check_hardware(config: FleetConfig) -> None:
    owners: dict[tuple[str | None, str], str] = {}
    for device in config.device:
        cores = [f"core {core}" for core in device.cores]
        for part in cores if device.gpu is None else [f"gpu {device.gpu}"]:
            if (owner := owners.setdefault((device.host, part), device.id)) != device.id:
                raise ValueError(
                    f"{part} belongs to both {owner!r} and {device.id!r}: change one of them, or combine them in a "
                    "device of pool 'serving', which serving and rollouts share"
                )
    if (pools := {device.pool for device in config.device}) != {"serving", "rollout"}:
        missing = sorted({"serving", "rollout"} - pools)
        raise ValueError(f"no device has pool {' or '.join(repr(pool) for pool in missing)}: add a device")


def _check_ranks(config: FleetConfig) -> None:
    for device in config.device if config.coserving.enabled else ():
        many = more_ranks(config.serving_on(device).extra_args)
        if many is not None and device.pool == "serving" and device.serving_url is None:
            raise ValueError(
                f"{device.serving_table}.extra_args has {many}: an engine on a lent device must have "
                "one rank. Leave it out, or set coserving.enabled to false"
            )
    for table, rollout in config.rollouts.items():
        if (many := more_ranks(rollout.extra_args)) is not None:
            raise ValueError(
                f"{table}.extra_args has {many}: versions are not split for several ranks. "
                "Leave it out: a rollout engine has one rank"
            )


def _check_ports(config: FleetConfig) -> None:
    names: list[str | None] = [host.name for host in config.hosts]
    for host in names or [None]:
        fields: dict[int, str] = {}
        for field, port in _named_ports(config, host):
            if port > _PORT_MAX:
                raise ValueError(f"{field} is {port}, above the last port {_PORT_MAX}: give a lower port")
            if (other := fields.setdefault(port, field)) != field:
                raise ValueError(f"{other} and {field} are both port {port}: change one of them")


def _named_ports(config: FleetConfig, host: str | None) -> Iterator[tuple[str, int]]:
    first = not config.hosts or host == config.hosts[0].name
    host_devices = [device for device in config.device if len(config.hosts) < 2 or device.host == host]
    for number, device in enumerate(device for device in host_devices if device.pool == "serving"):
        if device.serving_url is not None:
            url = urlsplit(device.serving_url)
            if url.hostname in _LOOPBACK:
                yield f"serving_url of device {device.id!r}", url.port or {"http": 80, "https": 443}[url.scheme]
        elif (port := config.serving_on(device).port) is not None:
            counted = f" + {number}, of device {device.id!r}," if number else ""
            yield f"{device.serving_table}.port{counted}", port + number
    if config.gateway.port is not None and first:
        yield "gateway.port", config.gateway.port


def _check_task(config: FleetConfig) -> None:
    task, model = config.task.environment, config.rollout.model
    if task != "frozenlake" and model == "frozenlake-tiny":
        raise ValueError(
            f"task.environment is {task!r}, but rollout.model {model!r} has tokens of 'frozenlake' only: name a "
            "chat model, such as 'smollm2-135m-instruct'"
        )
