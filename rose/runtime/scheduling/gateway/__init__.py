"""The controller over HTTP; each module holds the paths of one kind of caller."""

from rose.runtime.scheduling.gateway.server import Gateway as Gateway
