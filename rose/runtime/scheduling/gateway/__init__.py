"""The HTTP interface of the controller."""

from rose.runtime.scheduling.gateway.server import Gateway as Gateway
