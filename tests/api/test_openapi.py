"""The service asked what its own OpenAPI document allows, and what it does not.

A small part of what `st run` can ask; docs/conformance.md has the figures of a long run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, assume, settings
from schemathesis import Case, CheckContext, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.running import ROOT, Service, Upstream, service


def does_not_break(context: CheckContext, response: Response, case: Case[Any]) -> bool | None:
    """Like `not_a_server_error`, except for 508, which refuses a chain of agents."""
    return None if response.status_code == 508 else not_a_server_error(context, response, case)


SHAPES = [
    does_not_break,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]

# The document of a deployment with every switch on; tests/published holds it against the code.
document = schemathesis.openapi.from_path(ROOT / "tests" / "published" / "openapi.json")
document.config.phases.coverage.enabled = False  # thousands of requests


@pytest.fixture(scope="module")
def published(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Every switch is on, and no file is fetched from anywhere but here."""
    with service(
        fake,
        tmp_path_factory.mktemp("published"),
        A2A_CLIENT_ALLOWED_HOSTS='["127.0.0.1"]',
        A2A_ENABLE_SESSION_SHELL="true",
        A2A_ENABLE_WORKSPACE_MUTATIONS="true",
        A2A_PUSH="true",
        A2A_PUSH_ALLOWED_HOSTS="127.0.0.1",
    ) as running:
        yield running
        # JSON-RPC tells of our own mistakes under HTTP 200; the log has them all.
        assert "event=request.internal_error" not in running.program.output


def _never_ends(body: Any) -> bool:
    """Whether it asks for a stream that lasts until its reader leaves."""
    return isinstance(body, dict) and body.get("method") == "opencode.tasks.watch"


@document.parametrize()
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_published(case: Case[Any], published: Service) -> None:
    assume(not _never_ends(case.body))
    case.call_and_validate(
        base_url=published.url, headers=published.headers, checks=SHAPES, timeout=20
    )


def test_every_example_of_a_message_can_be_sent(published: Service) -> None:
    sent = 0
    for path, verbs in document.raw_schema["paths"].items():
        body = verbs.get("post", {}).get("requestBody", {"content": {}})
        for media_type, media in body["content"].items():
            calls = media["schema"].get("oneOf", ())
            methods = [example for call in calls for example in call.get("examples", ())]
            for example in methods or ([media["example"]] if "example" in media else []):
                headers = {**published.headers, "content-type": media_type}
                answer = httpx.post(published.url + path, json=example, headers=headers, timeout=60)
                assert answer.status_code == 200
                assert "completed" in answer.text.lower()
                sent += 1
    assert sent == 8  # message and stream, in both lines and both transports
