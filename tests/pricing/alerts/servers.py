"""Servers that messages are really sent to: an HTTP server, a mail server, and a certificate for both."""

from __future__ import annotations

import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that signed itself: its file, and what a server needs of it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "t")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file, key_file = folder / "certificate.pem", folder / "key.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key_file)
    return file, context


@dataclass
class Posted:
    """One request that the HTTP server got."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Web:
    """An HTTP server: what it got, and the codes that it answers with, the last one from then on."""

    url: str = ""
    got: list[Posted] = field(default_factory=list)
    codes: list[int] = field(default_factory=lambda: [200])
    #: Called with each request before it is answered.
    before: Callable[[Posted], None] = lambda posted: None


@contextmanager
def web(context: ssl.SSLContext | None = None) -> Iterator[Web]:
    stands = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted = Posted(self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"])))
            stands.got.append(posted)
            stands.before(posted)
            code = stands.codes.pop(0) if len(stands.codes) > 1 else stands.codes[0]
            try:
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", f"{stands.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
            except (BrokenPipeError, ConnectionResetError):
                # Who asked was killed.
                pass

        def do_GET(self) -> None:
            stands.got.append(Posted(self.path, dict(self.headers), b""))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    stands.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield stands
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Mails:
    """A mail server: its port, the mails that it took, and who logged in."""

    port: int = 0
    got: list[EmailMessage] = field(default_factory=list)
    to: list[str] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    #: What it answers to a mail.
    answer: str = "250 OK"
    refused: str | None = None
    refused_to: str = ""


@contextmanager
def mails(
    context: ssl.SSLContext | None = None, *, implicit: bool = False, password: str | None = None
) -> Iterator[Mails]:
    """With a `context` by STARTTLS, or TLS from the start where it is `implicit`; with a `password` after a login."""
    stands = Mails()

    class Handler:
        async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
            if stands.refused is not None and address.startswith(stands.refused_to):
                return stands.refused
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            mail = message_from_bytes(envelope.content, policy=policy.default)
            assert isinstance(mail, EmailMessage)
            if stands.answer.startswith("2"):
                stands.got.append(mail)
                stands.to.extend(envelope.rcpt_tos)
            stands.encrypted.append(server.transport.get_extra_info("ssl_object") is not None)
            return stands.answer

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        given = (data.login.decode(), data.password.decode())
        stands.logins.append(given)
        return AuthResult(success=given[1] == password, handled=False)

    options: dict[str, Any] = {}
    if password is not None:
        options = {"authenticator": authenticate, "auth_required": True, "auth_require_tls": not implicit}
    if context is not None:
        options |= {"ssl_context": context} if implicit else {"tls_context": context, "require_starttls": True}
    controller = _Controller(Handler(), hostname="127.0.0.1", port=0, **options)
    controller.start()
    stands.port = controller.port
    try:
        yield stands
    finally:
        controller.stop()


class _Controller(Controller):
    """Listens on a port that the system chooses."""

    def _trigger_server(self) -> None:
        self.port = int(self.server.sockets[0].getsockname()[1])
        super()._trigger_server()
