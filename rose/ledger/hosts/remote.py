"""The client of a ledger service: it reads a ledger on another host, and sends segments to it."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from rose.ledger.files.layout import LedgerError
from rose.ledger.reading.query import QueryError, Result, result

_CALL_S = 30.0
_ERROR_BYTES_MAX = 64 << 10
_LATER = (503, 507)


class ControllerError(LedgerError):
    """The controller refused a request, or no controller answers."""


class ControllerAwayError(ControllerError):
    exit_code: ClassVar[int] = 1


class RemoteLedger:
    """The ledger behind a controller. Thread-safe. All methods raise ControllerError."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._token = token
        if not _is_url(url):
            raise ControllerError(f"{url!r} is not a controller's URL; give http://HOST:PORT or https://HOST:PORT")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ends(self, writers: Sequence[str] | None = None) -> dict[str, Any]:
        parameters = "" if writers is None else "?" + urlencode([("writer", writer) for writer in writers])
        answer = {"writers": {}} if writers is not None and not writers else self._json("GET", f"segments{parameters}")
        return dict(answer["writers"])

    def send_segment(self, path: str, content: bytes) -> dict[str, Any]:
        """Send a segment and return its acknowledgement. The segment is then on disk."""
        return self._json("PUT", f"segments/{quote(path)}", content)

    def query(self, text: str, *, limit: int = 10_000, timeout_s: float = 30.0) -> Result:
        """Run a SELECT on the controller's host. For arguments and result see `rose.ledger.reading.query.query`."""
        select = {"sql": text, "limit": limit, "timeout_s": timeout_s, "lossless": True}
        headers, body = self._call("POST", "query", json.dumps(select).encode(), timeout_s + _CALL_S, QueryError)
        with suppress(pa.ArrowException):
            return result(pa.ipc.open_stream(body).read_all(), headers.get("X-Truncated") == "true")
        raise ControllerError(f"{self.url} is not a ROSE controller; check the address")

    def _json(self, method: str, path: str, content: bytes | None = None) -> dict[str, Any]:
        _, body = self._call(method, path, content, _CALL_S, ControllerError)
        with suppress(ValueError):
            if isinstance(answer := json.loads(body), dict):
                return answer
        raise ControllerError(f"{self.url} is not a ROSE controller; check the address")

    def _call(
        self, method: str, path: str, content: bytes | None, timeout_s: float, refused: type[LedgerError]
    ) -> tuple[Any, bytes]:
        request = urllib.request.Request(f"{self.url}/ledger/{path}", content, method=method)
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            response: HTTPResponse
            with self._opener.open(request, timeout=timeout_s) as response:
                return response.headers, response.read()
        except urllib.error.HTTPError as error:
            raise self._refusal(error, refused) from error
        except TimeoutError as error:
            raise ControllerAwayError(f"{self.url} did not answer in time; try again, or check the address") from error
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ControllerError(
                    f"the certificate of {self.url} is not trusted ({cause.verify_message}): name it in SSL_CERT_FILE"
                ) from error
            raise ControllerAwayError(f"no controller answers at {self.url} ({cause}): check the address") from error

    def _refusal(self, error: urllib.error.HTTPError, refused: type[LedgerError]) -> LedgerError:
        try:
            reason = str(json.loads(error.read(_ERROR_BYTES_MAX))["error"])
        except (ValueError, TypeError, KeyError):
            return ControllerError(f"{self.url} is not a ROSE controller ({error.code})")
        if error.code in _LATER:
            return ControllerAwayError(f"{self.url}: {reason}")
        return ControllerError(f"{self.url}: {reason}") if error.code in (401, 403) else refused(reason)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query
