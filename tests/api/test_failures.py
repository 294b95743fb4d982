"""Errors as answers, where that needs no service."""

from __future__ import annotations

from opencode_a2a.errors import UpstreamPayloadError
from opencode_a2a.inbound.dialect import V03_REST, V1
from opencode_a2a.inbound.failures import rest_error


def test_fields_of_an_answer_of_opencode_are_no_fields_of_the_request() -> None:
    error = UpstreamPayloadError("OpenCode sent nonsense.", fields=["5.hidden"])
    assert rest_error(error, V03_REST)["data"]["fields"] == ["5.hidden"]
    [info] = rest_error(error, V1)["error"]["details"]
    assert info["metadata"] == {"fields": "5.hidden"}
