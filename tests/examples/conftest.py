from tests.runtime.scheduling.gateway.conftest import checkpoint, speaking

__all__ = ["checkpoint", "speaking"]
