"""Rules for the URLs and addresses from which versions may be fetched."""

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import SplitResult, urlsplit

from rose.ledger.address import is_loopback
from rose.transfer.errors import TransferError

_OVER_HTTP = ("http", "https")
#: Metadata services of Amazon, Google, Alibaba, Azure and Oracle that are outside the link-local networks.
_METADATA = tuple(
    ipaddress.ip_address(address)
    for address in ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)


@dataclass(frozen=True, slots=True)
class OriginRules:
    """The sources that are allowed besides object stores and ordinary HTTP origins."""

    files: bool = False  # Whether `file:///FOLDER` is allowed.
    hosts: tuple[str, ...] = ()  # Names, addresses and networks allowed even if loopback, link-local or the like.
    client: str | None = None  # The address of the client that published the URL, which is allowed too.
    quotes: bool = False  # Whether errors quote the origin's answer, which may be confidential.

    def check_url(self, url: str) -> SplitResult:
        """Return the parts of an allowed URL. Raises TransferError; its message shows no secret of the URL."""
        scheme = url.partition("://")[0]
        schemes = (*_OVER_HTTP, "s3", "gs", *(("file",) if self.files else ()))
        if not url.isprintable() or " " in url:
            raise _refused(url, "leave out blanks and characters that cannot be printed")
        if "://" not in url or scheme not in schemes:
            hint = "; for files, set origins.files in the fleet file" if scheme == "file" else ""
            raise _refused(url, f"give http://HOST:PORT or s3://BUCKET/FOLDER; schemes are {', '.join(schemes)}{hint}")
        if "@" in url.split("/")[2]:
            raise _refused(url, "leave out user and password: an origin over HTTP takes a `token`")
        if "?" in url or "#" in url:
            raise _refused(url, "an origin has neither a query nor a fragment: leave them out")
        try:
            parts = urlsplit(url)
            has_host = bool(parts.netloc if scheme not in _OVER_HTTP else parts.hostname)
            _ = parts.port if scheme in _OVER_HTTP else None
        except ValueError:
            raise _refused(url, "its host or port cannot be read: give http://HOST:PORT") from None
        if has_host is (scheme == "file"):
            raise _refused(url, "give http://HOST:PORT, s3://BUCKET/FOLDER or file:///FOLDER")
        if "::" in (parts.path if scheme in _OVER_HTTP else url):
            raise _refused(url, "chained URLs (`::`) are not fetched")
        if scheme in _OVER_HTTP:
            assert parts.hostname is not None
            with suppress(ValueError):
                self.check_address(parts.hostname, str(ipaddress.ip_address(parts.hostname)))
        return parts

    def check_address(self, host: str, address: str) -> None:
        ip = _plain(address)
        if (kind := _kind(ip)) is None or any(_covers(entry, host, ip) for entry in self.hosts):
            return
        if self.client is not None:
            client = _plain(self.client)
            # The controller checks fleets with several hosts for loopback addresses. A loopback address in another
            # spelling, or behind a name, would pass that check. It would then lead each agent to its own host.
            if is_loopback(host) if client.is_loopback and ip.is_loopback else client == ip:
                return
        raise TransferError(
            f"url names host {host!r}, whose address {ip} is {kind}: publish at an address that the fleet's hosts "
            "reach, or name the host in origins.hosts of the fleet file"
        )


STRICT = OriginRules()  # For a fleet file without rules.
ANYWHERE = OriginRules(files=True, hosts=("0.0.0.0/0", "::/0"), quotes=True)  # For an origin that the caller chose.


def shown(url: str) -> str:
    """Return the URL as errors show it: shortened, and without the parts that may be a password or a token."""
    scheme, separator, _ = url.partition("://")
    if "@" in url:
        return f"{scheme}://..." if separator and "@" not in scheme else "..."
    plain = url.partition("?")[0].partition("#")[0]
    return (plain if plain == url else f"{plain}...")[:200]


def _refused(url: str, reason: str) -> TransferError:
    return TransferError(f"url is {shown(url)!r}: {reason}")


def _plain(address: str) -> IPv4Address | IPv6Address:
    ip = ipaddress.ip_address(address)
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip


def _kind(address: IPv4Address | IPv6Address) -> str | None:
    kinds = {
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "unspecified": address.is_unspecified,
        "multicast": address.is_multicast,
        "a cloud's metadata service": address in _METADATA,
    }
    return next((kind for kind, holds in kinds.items() if holds), None)


def _covers(entry: str, host: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return entry.lower() == host.lower()
