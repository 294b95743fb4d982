"""Which protocol version a request may name, and how it names one."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.forms import INVALID_PARAMS, TASK_NOT_FOUND, VERSION_NOT_SUPPORTED, Form, line_to
from tests.running import Upstream, service


@pytest.fixture(scope="module")
def strict(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service that wants the version said."""
    directory = tmp_path_factory.mktemp("strict")
    with service(fake, directory, A2A_STRICT_VERSION="true") as running, line_to(running) as found:
        yield found


def asked(
    client: httpx.Client, form: Form, header: str | None, query: str | None = None
) -> httpx.Response:
    """Ask for a task nobody has, naming a version in one way or another."""
    request = form.request(client, "get", {"id": "missing"})
    del request.headers["a2a-version"]
    if header is not None:
        request.headers["a2a-version"] = header
    if query is not None:
        request.url = request.url.copy_add_param("A2A-Version", query)
    return client.send(request)


@pytest.mark.parametrize("version", ["1.0", "1.0.0", "1.0.7"])
def test_every_line_answers_clients_of_1_0(client: httpx.Client, form: Form, version: str) -> None:
    """One that follows 1.0 sends its version with every request, to a 0.3 interface too."""
    form.refused(asked(client, form, version), TASK_NOT_FOUND)
    form.refused(asked(client, form, None, version), TASK_NOT_FOUND)


@pytest.mark.parametrize("version", ["0.3", "0.3.0"])
def test_0_3_is_spoken_on_its_own_line_only(client: httpx.Client, form: Form, version: str) -> None:
    kind = TASK_NOT_FOUND if form.line == "0.3" else VERSION_NOT_SUPPORTED
    form.refused(asked(client, form, version), kind)
    form.refused(asked(client, form, None, version), kind)


def test_no_version_is_fine(client: httpx.Client, form: Form) -> None:
    form.refused(asked(client, form, None), TASK_NOT_FOUND)
    form.refused(asked(client, form, ""), TASK_NOT_FOUND)


@pytest.mark.parametrize("version", ["1.1", "2.0", "0.2", "0.4", "1", "10.0", "one", "1.0-rc1"])
def test_other_versions_are_refused(client: httpx.Client, form: Form, version: str) -> None:
    for response in (asked(client, form, version), asked(client, form, None, version)):
        refusal = form.refused(response, VERSION_NOT_SUPPORTED)
        assert refusal.facts["requested"] == version
        assert "1.0" in refusal.facts["supported"]
        assert "0.3" in refusal.facts["supported"]


def test_the_header_counts_before_the_query(client: httpx.Client, form: Form) -> None:
    form.refused(asked(client, form, "1.0", "2.0"), TASK_NOT_FOUND)
    form.refused(asked(client, form, "2.0", "1.0"), VERSION_NOT_SUPPORTED)


def test_the_version_is_checked_before_the_parameters(client: httpx.Client, form: Form) -> None:
    request = form.request(client, "send", {"message": {}})
    form.refused(client.send(request), INVALID_PARAMS)
    request.headers["a2a-version"] = "2.0"
    form.refused(client.send(request), VERSION_NOT_SUPPORTED)


def test_a_strict_service_wants_1_0_to_be_said(strict: httpx.Client, form: Form) -> None:
    kind = TASK_NOT_FOUND if form.line == "0.3" else VERSION_NOT_SUPPORTED
    form.refused(asked(strict, form, None), kind)
    form.refused(asked(strict, form, ""), kind)
    form.refused(asked(strict, form, "1.0"), TASK_NOT_FOUND)
    form.refused(asked(strict, form, None, "1.0"), TASK_NOT_FOUND)


def test_a_card_needs_no_version_even_from_a_strict_service(strict: httpx.Client) -> None:
    assert strict.get("/.well-known/agent-card.json").status_code == 200
