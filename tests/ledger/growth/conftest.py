from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[Any, dict[str, Any]]]:
    """A file system of a server that speaks S3's protocol, and how to reach it."""
    server_of = pytest.importorskip("moto.server", reason="needs an S3 server: pip install 'moto[server]' s3fs")
    s3fs = pytest.importorskip("s3fs", reason="needs an S3 client: pip install 'moto[server]' s3fs")
    server = server_of.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "key", "secret": "secret", "endpoint_url": f"http://{host}:{port}"}
    yield s3fs.S3FileSystem(**options), options
    server.stop()
