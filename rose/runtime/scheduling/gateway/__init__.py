from rose.runtime.scheduling.gateway.server import Gateway as Gateway
