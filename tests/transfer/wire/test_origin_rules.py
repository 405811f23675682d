"""Which URLs and addresses are fetched from, and what is said of those that are not."""

import pytest

from rose.transfer.errors import TransferError
from rose.transfer.wire.origin_rules import ANYWHERE, OriginRules

STRICT = OriginRules()


@pytest.mark.parametrize(
    "url",
    [
        "http://trainer:8815",
        "https://trainer.example/store",
        "http://10.0.0.7:30200",
        "http://192.168.1.2",
        "http://[2001:db8::7]:30200/a",
        "s3://bucket/folder",
        "s3://bucket",
        "gs://bucket/folder@v2",
    ],
)
def test_origins_over_http_and_object_stores_are_taken(url: str) -> None:
    assert STRICT.check_url(url).geturl() == url


@pytest.mark.parametrize(
    "url",
    [
        "dbfs://x/y",
        "async_wrapper://x",
        "zip://::file:///etc/hostname",
        "reference://::http://host/r.json",
        "s3://[::http://host/]",
        "http://host/x::file:///etc/hostname",
        "local:///etc",
        "memory://x",
        "ftp://host/x",
        "S3://bucket/x",
        "s3:reference://x",
        "\ts3://bucket/x",
        "s3\n://bucket/x",
        "http://a b",
        "nope",
        "",
        "http://",
        "s3://",
        "file://relative",
        "http://x:port",
        "http://[::1",
    ],
)
def test_any_other_url_is_refused_also_where_files_are_taken(url: str) -> None:
    with pytest.raises(TransferError, match=r"^url is '"):
        ANYWHERE.check_url(url)


def test_files_are_taken_where_the_fleet_file_says_so() -> None:
    with pytest.raises(TransferError, match=r"^url is 'file:///disk/weights': .*origins\.files"):
        STRICT.check_url("file:///disk/weights")
    assert OriginRules(files=True).check_url("file:///disk/weights").path == "/disk/weights"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hidden@host/x",
        "http://user:hidden?x@host/x",
        "http://host:1/x?token=hidden",
        "http://host/x#hidden",
        "s3://key:hidden@bucket/x",
        "zip://x::http://user:hidden@host/x",
        "user:hidden@host",
        "http://host:hidden@",
    ],
)
def test_a_password_or_a_token_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(TransferError, match=r"^url is '") as refused:
        ANYWHERE.check_url(url)
    assert "hid" not in str(refused.value)


SPECIAL = ["127.0.0.1", "127.8.9.1", "::1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "0.0.0.0", "::"]
SPECIAL += ["224.0.0.1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "fd00:ec2::254", "fd20:ce::254"]
SPECIAL += ["100.100.100.200", "168.63.129.16", "192.0.0.192"]


@pytest.mark.parametrize("address", SPECIAL)
def test_a_special_address_is_refused_unless_the_fleet_file_names_it(address: str) -> None:
    with pytest.raises(TransferError, match=r"host 'origin', whose address .* is .*origins\.hosts"):
        STRICT.check_address("origin", address)
    ANYWHERE.check_address("origin", address)
    OriginRules(hosts=("Origin",)).check_address("origin", address)
    with pytest.raises(TransferError):
        OriginRules(hosts=("other", "10.0.0.0/8")).check_address("origin", address)


def test_a_url_that_spells_a_special_address_is_refused_before_anything_connects() -> None:
    for host in ("127.0.0.1", "[::1]", "169.254.169.254", "[::ffff:127.0.0.1]", "0.0.0.0"):
        with pytest.raises(TransferError, match="publish at an address that the fleet's hosts reach"):
            STRICT.check_url(f"http://{host}:80/x")
        OriginRules(hosts=("127.0.0.0/8", "::1", "169.254.169.254", "0.0.0.0")).check_url(f"http://{host}:80/x")


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.0.1", "172.16.0.1", "fd00::7", "8.8.8.8", "2001:db8::1"])
def test_a_private_or_a_public_address_is_taken(address: str) -> None:
    STRICT.check_address("origin", address)


def test_a_client_may_publish_at_the_address_that_it_came_from() -> None:
    OriginRules(client="127.0.0.1").check_address("localhost", "::1")
    OriginRules(client="::ffff:127.0.0.1").check_url("http://127.0.0.1:5")
    OriginRules(client="169.254.7.7").check_address("origin", "169.254.7.7")
    for client, address in (("10.0.0.7", "127.0.0.1"), ("127.0.0.1", "169.254.169.254"), ("169.254.7.7", "127.0.0.1")):
        with pytest.raises(TransferError):
            OriginRules(client=client).check_address("origin", address)


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "2130706433", "trainer.example"])
def test_loopback_by_another_spelling_is_refused_to_its_own_client(host: str) -> None:
    """The controller tells by the spelling whether a URL leads each host of a fleet to itself."""
    rules = OriginRules(client="127.0.0.1")
    with pytest.raises(TransferError, match=r"origins\.hosts"):
        rules.check_address(host, "127.0.0.1")
    for spelled in ("127.0.0.1", "localhost"):
        rules.check_address(spelled, "127.0.0.1")
    OriginRules(client="127.0.0.1", hosts=(host,)).check_address(host, "127.0.0.1")
