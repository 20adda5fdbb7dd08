# SPDX-License-Identifier: Apache-2.0
"""A small OpenID Connect server, which issues signed tokens and publishes its key."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.kafka.broker import held_port

ISSUER = "https://issuer.invalid"
AUDIENCE = "kafka"
CLIENT, SECRET = "events", "correct-horse-battery-staple"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def _text(blob: bytes) -> str:
    return base64.urlsafe_b64encode(blob).decode().rstrip("=")


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a token, without a check."""
    claims = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    return found


class OidcServer:
    """Issues tokens at ``/token`` to one client, and publishes its key at ``/keys``.

    Attributes:
        lifetime_s: the lifetime of each token.
        secret: the secret of the client.
        assertion: the assertion that is accepted instead of the secret.
        answer: a status and a body to send instead of a token.
        location: the target of a redirect, which has the status of `answer`.
        forms: the form of each request for a token.
        states_lifetime: True if responses have expires_in.
    """

    def __init__(self, lifetime_s: float = 3600) -> None:
        self.lifetime_s = lifetime_s
        self.secret = SECRET
        self.assertion = "assertion"
        self.answer: tuple[int, bytes] | None = None
        self.location = ""
        self.forms: list[dict[str, str]] = []
        self.states_lifetime = True
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._held = held_port()
        self.start()

    def start(self) -> None:
        """Listen at the address of this server."""
        self._server = ThreadingHTTPServer(self._held.getsockname(), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections until `start`."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._held.getsockname()[1]}"

    @property
    def token_url(self) -> str:
        return f"{self.address}/token"

    def options(self, **more: Any) -> dict[str, Any]:
        """The options of a sink that gets its tokens here."""
        client = {"sasl_oauthbearer_client_id": CLIENT, "sasl_oauthbearer_client_secret": SECRET}
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_method": "oidc",
            "sasl_oauthbearer_token_endpoint_url": self.token_url,
            **client,
            **more,
        }

    def token(self) -> str:
        """Return a signed token (RS256)."""
        now_s = time.time()
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": CLIENT, "iat": now_s, "exp": now_s + self.lifetime_s}
        parts = ({"alg": "RS256", "kid": "key", "typ": "JWT"}, {**claims, "jti": f"{len(self.forms)}"})
        signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "key"}
        return {"keys": [{**key, "n": _number(numbers.n), "e": _number(numbers.e)}]}

    def _issue(self, form: dict[str, str], authorization: str) -> tuple[int, bytes]:
        self.forms.append(form)
        if self.answer is not None:
            return self.answer
        expected = f"Basic {base64.b64encode(f'{CLIENT}:{self.secret}'.encode()).decode()}"
        is_client = form["grant_type"] == "client_credentials" and authorization == expected
        is_asserted = form["grant_type"] == JWT_BEARER and form["assertion"] == self.assertion
        if not is_client and not is_asserted:
            return 401, b'{"error": "invalid_client", "error_description": "unknown to us"}'
        lifetime = {"expires_in": self.lifetime_s} if self.states_lifetime else {}
        return 200, json.dumps({"access_token": self.token(), "token_type": "Bearer", **lifetime}).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = dict(urllib.parse.parse_qsl(body))
                self._send(*server._issue(form, self.headers.get("Authorization", "")))

            def do_GET(self) -> None:
                self._send(200, json.dumps(server.keys()).encode())

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if server.location:
                    self.send_header("Location", server.location)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write nothing, because tests read no log."""

        return Handler

    def close(self) -> None:
        self.stop()
        self._held.close()


@contextlib.contextmanager
def oidc_server(lifetime_s: float = 3600) -> Iterator[OidcServer]:
    """Run a server until the context ends."""
    server = OidcServer(lifetime_s)
    try:
        yield server
    finally:
        server.close()
