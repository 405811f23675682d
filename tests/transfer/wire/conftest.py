from collections.abc import Iterator

import fsspec
import pytest


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """The URL of a bucket that speaks S3's protocol; where it is and its key are in the environment."""
    server_of = pytest.importorskip("moto.server", reason="needs an S3 server: pip install 'moto[server]' s3fs")
    pytest.importorskip("s3fs", reason="needs an S3 client: pip install 'moto[server]' s3fs")
    server = server_of.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        fsspec.filesystem("s3").mkdir("weights")
        yield "s3://weights"
    server.stop()
