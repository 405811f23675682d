"""A real OpenID provider on loopback, with codes, PKCE, tokens and logout."""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "rose-dashboard", 'a secret of the client, with "quotes" and a \\'


class Provider:
    """`person` is logged in. The next token has `lies`."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.person: dict[str, Any] = {}
        self.lies: dict[str, Any] = {}
        #: Signs in place of the provider's own key.
        self.forger: RSAKey | None = None
        self.issuer = ""
        #: Paths that were asked for, with their query.
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "end_session_endpoint": f"{self.issuer}/logout",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }

    def authorize(self, query: dict[str, str]) -> str:
        assert query["client_id"] == CLIENT_ID
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> dict[str, Any]:
        client = base64.b64decode(authorization.removeprefix("Basic ")).decode().split(":", 1)
        request = self._codes.pop(form["code"])
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
        assert client == [CLIENT_ID, CLIENT_SECRET]
        assert challenge.rstrip("=") == request["code_challenge"]
        assert form["redirect_uri"] == request["redirect_uri"]
        now_s = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now_s, "exp": now_s + 300, "nonce": request["nonce"]}
        key = self.forger or self.key
        id_token = jwt.encode({"alg": "RS256", "kid": "one"}, claims | self.person | self.lies, key)
        return {"access_token": "opaque", "token_type": "Bearer", "expires_in": 300, "id_token": id_token}


@contextmanager
def running() -> Iterator[Provider]:
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            provider.asked.append(self.path)
            if parts.path == "/.well-known/openid-configuration":
                self._answer(provider.metadata())
            elif parts.path == "/jwks":
                self._answer({"keys": [provider.key.as_dict(private=False)]})
            elif parts.path == "/authorize":
                self._go(provider.authorize(query))
            elif parts.path == "/logout":
                self._go(query["post_logout_redirect_uri"])
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer(provider.token(form, self.headers["Authorization"]))

        def _answer(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def _go(self, where: str) -> None:
            self.send_response(302)
            self.send_header("Location", where)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.issuer = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield provider
        server.shutdown()
