"""The controller over HTTP."""

from rose.runtime.scheduling.gateway.server import Gateway as Gateway
