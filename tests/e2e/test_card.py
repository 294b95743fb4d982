"""The Agent Card: strictly what each protocol line defines, and enough for its clients to start."""

from __future__ import annotations

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.compat.v0_3 import types as v03
from a2a.types.a2a_pb2 import AgentCard, GetTaskRequest

from tests.e2e.clients import ask
from tests.e2e.protojson import from_json
from tests.e2e.seen import PATIENCE, shown
from tests.running import Service

PATH = "/.well-known/agent-card.json"


def test_the_pure_card_is_an_agent_card_of_1_0_and_nothing_else(real_service: Service) -> None:
    response = httpx.get(real_service.url + PATH, headers={"A2A-Version": "1.0"}, timeout=PATIENCE)
    card = from_json(response.json(), AgentCard)
    assert [(i.protocol_binding, i.protocol_version, i.url) for i in card.supported_interfaces] == [
        ("JSONRPC", "1.0", real_service.url),
        ("HTTP+JSON", "1.0", real_service.url),
        ("JSONRPC", "0.3", real_service.url),
        ("HTTP+JSON", "0.3", real_service.url),
    ]
    assert card.capabilities.streaming
    assert not card.capabilities.push_notifications
    assert response.headers["vary"] == "A2A-Version, Accept-Encoding"


@pytest.mark.parametrize("path", [PATH, "/.well-known/agent.json"])
def test_everybody_else_gets_a_card_of_both_lines(real_service: Service, path: str) -> None:
    body = httpx.get(real_service.url + path, timeout=PATIENCE).json()
    card = v03.AgentCard.model_validate(body)
    assert card.protocol_version == "0.3.0"
    assert card.url == real_service.url
    assert card.preferred_transport == "JSONRPC"
    assert {i.transport for i in card.additional_interfaces or []} == {"JSONRPC", "HTTP+JSON"}
    assert card.capabilities.streaming
    pure = httpx.get(
        real_service.url + path, headers={"A2A-Version": "1.0"}, timeout=PATIENCE
    ).json()
    assert {name: body[name] for name in pure if name != "securitySchemes"} == {
        name: value for name, value in pure.items() if name != "securitySchemes"
    }


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_client_finds_its_own_way_from_the_address_alone(
    real_service: Service, binding: str
) -> None:
    async with httpx.AsyncClient(headers=real_service.headers, timeout=PATIENCE) as http:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        client = await ClientFactory(config).create_from_url(real_service.url)
        task_id = ""
        async for event in client.send_message(ask("[[text:Welcome.]]")):
            task_id = task_id or event.task.id
        task = await client.get_task(GetTaskRequest(id=task_id))
    assert shown(task) == [("answer", "Welcome.")]
