"""Push notifications with the clients of the A2A project, on both lines, read by their types."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from a2a.compat.v0_3 import types as v03
from a2a.types.a2a_pb2 import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    StreamResponse,
    Task,
    TaskPushNotificationConfig,
)

from tests.e2e.clients import LINES, Line, PythonClient, ask
from tests.e2e.javascript import JavaScriptClient
from tests.e2e.protojson import from_json
from tests.receivers import Receiver, receiver, state_of
from tests.running import Service, Upstream, service


@pytest.fixture(scope="module")
def pushing(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("push-sdk")
    settings = {"A2A_PUSH": "true", "A2A_PUSH_PRIVATE_HOSTS": "127.0.0.1"}
    with service(fake, folder, **settings) as running:
        yield running


@pytest.fixture(params=LINES, ids=str)
def line(request: pytest.FixtureRequest) -> Line:
    found: Line = request.param
    return found


@pytest.fixture
def webhook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


async def told(webhook: Receiver, line: Line) -> list[str]:
    """The states that arrived, each read with the types of the line, strictly."""
    got = await asyncio.to_thread(webhook.wait_for_end)
    for each in got:
        if line.version == "1.0":
            event = from_json(each.json, StreamResponse)
            assert event.WhichOneof("payload") in ("task", "status_update")
        else:
            assert v03.Task.model_validate(each.json).kind == "task"
    return [state_of(each) for each in got]


async def test_the_python_client_registers_inline_and_by_method(
    pushing: Service, line: Line, webhook: Receiver
) -> None:
    async with PythonClient.connect(pushing, line) as client:
        request = ask("hello", now=True)
        request.configuration.task_push_notification_config.CopyFrom(
            TaskPushNotificationConfig(url=webhook.url, token="opaque")
        )
        await client.send(request)
        assert await told(webhook, line) == ["working", "completed"]
        assert webhook.taken[0].headers["x-a2a-notification-token"] == "opaque"

        asked = await client.send(ask("[[question]]"))
        with receiver() as second:
            await register(client, asked, second.url)
            await client.send(ask("A", task=asked.id))
            assert await told(second, line) == ["working", "completed"]


async def register(client: PythonClient, task: Task, url: str) -> None:
    """Make two configs, look at them, and delete one, as far as the client can."""
    sdk, is_limited = client.sdk, str(client.line) == "0.3-rest"
    for name in ("kept",) if is_limited else ("kept", "gone"):
        config = TaskPushNotificationConfig(task_id=task.id, id=name, url=url)
        made = await sdk.create_task_push_notification_config(config)
        assert (made.task_id, made.id, made.url) == (task.id, name, url)
    read = await sdk.get_task_push_notification_config(
        GetTaskPushNotificationConfigRequest(task_id=task.id, id="kept")
    )
    assert read.url == url
    if is_limited:
        return  # it can neither list nor delete
    every = ListTaskPushNotificationConfigsRequest(task_id=task.id)
    listed = await sdk.list_task_push_notification_configs(every)
    assert {config.id for config in listed.configs} == {"kept", "gone"}
    await sdk.delete_task_push_notification_config(
        DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="gone")
    )
    listed = await sdk.list_task_push_notification_configs(every)
    assert [config.id for config in listed.configs] == ["kept"]


async def test_the_javascript_client_registers_by_method(
    pushing: Service, line: Line, webhook: Receiver, tmp_path: Path
) -> None:
    async with JavaScriptClient.connect(pushing, line, tmp_path) as client:
        asked = await client.send(ask("[[question]]"))
        for name in ("kept", "gone"):
            made, read, listed = await client.push(
                {"taskId": asked.id, "id": name, "url": webhook.url, "token": "opaque"}
            )
            for answer in (made, read, listed):
                assert webhook.url in str(answer)
                assert "opaque" not in str(answer)
        await client.send(ask("A", task=asked.id))
        assert await told(webhook, line) == ["working", "completed"]
        if line.version == "1.0":
            for each in webhook.taken:
                shown = await client.receive(each.json)
                assert shown.keys() == each.json.keys()
