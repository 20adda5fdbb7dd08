# SPDX-License-Identifier: Apache-2.0
"""Requests are mapped to kafka-python's classes by API key."""

from __future__ import annotations

import pytest

from shmaccum.log.server import messages


@pytest.mark.parametrize("api_key", sorted(messages.API_KEYS))
def test_each_api_has_its_request_and_its_response(api_key: int) -> None:
    request, response = messages._messages(api_key)
    assert (request.API_KEY, request.type) == (api_key, "request")
    assert (response.API_KEY, response.type) == (api_key, "response")
    assert messages.api_name(api_key) + "Request" == request.__name__
