# SPDX-License-Identifier: Apache-2.0
"""Sources of tokens for OAUTHBEARER: a user's code, an OpenID Connect (OIDC) server, or the identity of an AWS role.

A source is a function that returns a new `Token`. It may take seconds, so a thread calls it
(shmaccum/sender/sinks/kafka/library/tokens.py).
"""

from __future__ import annotations

import base64
import importlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shmaccum.common.packages import needed
from shmaccum.common.secret_files import read_secret
from shmaccum.config import KafkaSinkOptions
from shmaccum.config.kafka import extensions_of
from shmaccum.exceptions import InvalidArgumentError, ShmaccumError

LIFETIME_UNKNOWN_S = 60.0
"""The assumed lifetime of a token that does not state when it expires."""
REQUEST_TIMEOUT_S = 10.0
RESPONSE_SIZE_MAX = 1 << 20
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class TokenError(ShmaccumError):
    """A source has no token now. A later attempt may succeed."""


@dataclass(frozen=True)
class Token:
    """A token, and the time for which it is valid.

    Attributes:
        text: the token, which is secret.
        lifetime_s: the seconds from now until it expires.
        extensions: KIP-342.
    """

    text: str = field(repr=False)
    lifetime_s: float
    extensions: Mapping[str, str] = field(default_factory=dict)


TokenSource = Callable[[], Token]


def token_source(options: KafkaSinkOptions) -> TokenSource | None:
    """Return the source that the options name; None without OAUTHBEARER.

    Raises:
        InvalidArgumentError: the module of a token provider cannot be imported, or a secret cannot be read.
        PackageMissingError: a package for the source is missing.
    """
    if options.sasl_mechanism != "OAUTHBEARER":
        return None
    if options.sasl_oauthbearer_method == "oidc":
        source = OidcSource(options)
        source.headers_and_form()
        return source
    if options.sasl_oauthbearer_method == "aws_msk_iam":
        return _msk_source()
    return ProviderSource(options.sasl_oauth_token_provider)


# --- a user's code


class ProviderSource:
    """Calls a user's function, or object with ``token()`` and optionally ``extensions()``.

    Args:
        given: the function or object, or ``module:name`` of one. If the name is of a class, an instance is made.

    Raises:
        InvalidArgumentError: the name cannot be imported, or is not a provider.
    """

    def __init__(self, given: Any) -> None:
        provider = _imported(given) if isinstance(given, str) else given
        self._ask = getattr(provider, "token", provider)
        self._ask_extensions = getattr(provider, "extensions", dict)

    def __call__(self) -> Token:
        answer = self._ask()
        text, expiry_s = answer if isinstance(answer, tuple) else (answer, None)
        if not isinstance(text, str) or not text:
            raise TokenError(f"it returned {type(text).__name__}, not the text of a token")
        return Token(text, _lifetime_s(text, expiry_s), dict(self._ask_extensions()))


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        provider = found() if isinstance(found, type) else found
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        raise InvalidArgumentError(
            f"sasl_oauth_token_provider={place} cannot be imported: {type(error).__name__}: {error}. Write "
            "module:function, and check PYTHONPATH of the sender"
        ) from None
    if not callable(provider) and not hasattr(provider, "token"):
        raise InvalidArgumentError(f"sasl_oauth_token_provider={place} is neither a function nor has it token()")
    return provider


def _lifetime_s(text: str, expiry_s: float | None) -> float:
    """Return the seconds until an expiry; without one, until the time that a JSON web token states (``exp``)."""
    if expiry_s is None:
        expiry_s = _stated_expiry_s(text)
    return LIFETIME_UNKNOWN_S if expiry_s is None else float(expiry_s) - time.time()


def _stated_expiry_s(text: str) -> float | None:
    try:
        claims = text.split(".")[1]
        expiry_s = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
        return float(expiry_s)
    except (IndexError, KeyError, TypeError, ValueError):
        return None


# --- OpenID Connect


class OidcSource:
    """Requests tokens from an OIDC server, for a client with a secret (RFC 6749) or with an assertion (RFC 7523)."""

    def __init__(self, options: KafkaSinkOptions) -> None:
        assert options.sasl_oauthbearer_token_endpoint_url is not None
        self._url: str = options.sasl_oauthbearer_token_endpoint_url
        self._options = options
        self._extensions = extensions_of(options.sasl_oauthbearer_extensions)

    def headers_and_form(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return headers and fields of a request. Secret and assertion are read again each time.

        Raises:
            InvalidArgumentError: the secret or the assertion cannot be read.
        """
        options = self._options
        headers = {"Accept": "application/json"}
        form = {"grant_type": "client_credentials"}
        if options.sasl_oauthbearer_assertion_file is not None:
            assertion = read_secret(options.sasl_oauthbearer_assertion_file, "assertion").strip()
            form = {"grant_type": JWT_BEARER, "assertion": assertion}
        if options.sasl_oauthbearer_client_secret is not None:
            pair = f"{options.sasl_oauthbearer_client_id}:{options.sasl_oauthbearer_client_secret.reveal()}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        if options.sasl_oauthbearer_scope is not None:
            form["scope"] = options.sasl_oauthbearer_scope
        return headers, form

    def __call__(self) -> Token:
        answer = self._answer()
        text, lifetime_s = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(text, str) or not text:
            raise TokenError(f"{self._url} sent no access_token")
        try:
            valid_s = _lifetime_s(text, None) if lifetime_s is None else float(lifetime_s)
        except (TypeError, ValueError):
            raise TokenError(f"{self._url} sent expires_in={lifetime_s!r:.40}, which is not a number") from None
        return Token(text, valid_s, self._extensions)

    def _answer(self) -> dict[str, Any]:
        import urllib.error
        import urllib.parse
        import urllib.request

        class Unredirected(urllib.request.HTTPRedirectHandler):
            """A redirect would send the client's secret to another server."""

            def redirect_request(self, *_: Any) -> None:
                return None

        headers, form = self.headers_and_form()
        request = urllib.request.Request(self._url, urllib.parse.urlencode(form).encode(), headers)
        try:
            with urllib.request.build_opener(Unredirected).open(request, timeout=REQUEST_TIMEOUT_S) as response:
                answer = json.loads(response.read(RESPONSE_SIZE_MAX))
        except urllib.error.HTTPError as error:
            with error:
                reason = _reason(error.read(RESPONSE_SIZE_MAX))
            raise TokenError(f"{self._url} answered {error.code} {error.reason}{reason}") from None
        except (OSError, ValueError) as error:
            raise TokenError(f"{self._url} sent no token: {error}") from None
        if not isinstance(answer, dict):
            raise TokenError(f"{self._url} sent no JSON object")
        return answer


def _reason(body: bytes) -> str:
    """Return the error of a response (RFC 6749, 5.2), which contains no secret."""
    try:
        answer = json.loads(body)
        parts = [answer[name] for name in ("error", "error_description") if name in answer]
    except (TypeError, ValueError):
        return ""
    return "".join(f": {part!s:.200}" for part in parts)


# --- AWS


def _msk_source() -> TokenSource:
    """Return a source of tokens that a broker of Amazon MSK accepts: URLs signed with the credentials of the role."""
    with needed("aws-msk-iam-sasl-signer-python", "msk", "sasl_oauthbearer_method=aws_msk_iam needs"):
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        from botocore.session import Session
    region = Session().get_config_variable("region")
    if not region:
        raise InvalidArgumentError("the region of the cluster is unknown: set AWS_DEFAULT_REGION")

    def source() -> Token:
        text, expiry_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return Token(text, _lifetime_s(text, expiry_ms / 1000))

    return source
