"""One interface over every real A2A client, so that one test body runs with all of them.

A client speaks one line (1.0 or 0.3) over one binding (JSON-RPC or HTTP+JSON). It
takes and gives the SDK's 1.0 types, whatever is on the wire, and raises `Refusal`
with the A2A code for everything the service refuses.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client import Client as SdkClient
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError

from tests.e2e.seen import PATIENCE, Stream, facts, outcome
from tests.e2e.wire import Recording
from tests.running import Service


@dataclass(frozen=True)
class Line:
    version: Literal["1.0", "0.3"]
    binding: Literal["JSONRPC", "HTTP+JSON"]

    def __str__(self) -> str:
        return f"{self.version}-{'rpc' if self.binding == 'JSONRPC' else 'rest'}"


LINES = (
    Line("1.0", "JSONRPC"),
    Line("1.0", "HTTP+JSON"),
    Line("0.3", "JSONRPC"),
    Line("0.3", "HTTP+JSON"),
)


STREAM_HINTS = "urn:a2a:stream-hints/v1"


def extensions_header(line: Line) -> str:
    return "a2a-extensions" if line.version == "1.0" else "x-a2a-extensions"


class Refusal(Exception):
    """The service said no."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def ask(
    *content: str | Part,
    context: str = "",
    task: str = "",
    message_id: str = "",
    now: bool = False,
    modes: Sequence[str] = (),
    history: int | None = None,
    extensions: Sequence[str] = (),
) -> SendMessageRequest:
    """A request to send text and other parts; `now` does not wait for the answer."""
    parts = [Part(text=part) if isinstance(part, str) else part for part in content]
    return SendMessageRequest(
        message=Message(
            message_id=message_id or str(uuid.uuid4()),
            role=Role.ROLE_USER,
            parts=parts,
            context_id=context,
            task_id=task,
            extensions=extensions,
        ),
        configuration=SendMessageConfiguration(
            return_immediately=now, accepted_output_modes=modes, history_length=history
        ),
    )


class Client(Protocol):
    line: Line

    async def send(self, request: SendMessageRequest) -> Task: ...

    def stream(self, request: SendMessageRequest) -> AbstractAsyncContextManager[Stream]: ...

    async def get(self, task_id: str, history: int | None = None) -> Task: ...

    async def cancel(self, task_id: str) -> Task: ...

    def resubscribe(self, task_id: str) -> AbstractAsyncContextManager[Stream]: ...


class PythonClient:
    """a2a-sdk's client, bound to one of the four interfaces of the card."""

    def __init__(self, line: Line, unary: SdkClient, streaming: SdkClient, wire: Recording) -> None:
        self.line = line
        self.wire = wire
        self._unary = unary
        self._streaming = streaming

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, service: Service, line: Line, *, hints: bool = True, **headers: str
    ) -> AsyncIterator[PythonClient]:
        """With stream hints activated, which show everything, or as a client that knows none.

        `headers` go with every request, in the names of the environment: `a2a_extensions`.
        """
        wire = Recording()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if hints:
            name = extensions_header(line)
            named[name] = ", ".join(filter(None, [named.get(name), STREAM_HINTS]))
        async with httpx.AsyncClient(
            transport=wire, headers=service.headers | named, timeout=PATIENCE, trust_env=False
        ) as http:
            card = await A2ACardResolver(http, service.url).get_agent_card()
            chosen = [
                interface
                for interface in card.supported_interfaces
                if (interface.protocol_version, interface.protocol_binding)
                == (line.version, line.binding)
            ]
            del card.supported_interfaces[:]
            card.supported_interfaces.extend(chosen)

            def client(streaming: bool) -> SdkClient:
                config = ClientConfig(
                    streaming=streaming,
                    httpx_client=http,
                    supported_protocol_bindings=[line.binding],
                )
                return ClientFactory(config).create(card)

            yield cls(line, client(False), client(True), wire)
        wire.check()

    @property
    def sdk(self) -> SdkClient:
        """The client itself, for what only one test does."""
        return self._unary

    async def send(self, request: SendMessageRequest) -> Task:
        with _refusals():
            [event] = [event async for event in self._unary.send_message(request)]
        assert event.HasField("task"), "every answer of this agent is a task"
        return event.task

    @asynccontextmanager
    async def stream(self, request: SendMessageRequest) -> AsyncIterator[Stream]:
        async with aclosing(_refusing(self._streaming.send_message(request))) as events:
            yield Stream(events)

    async def get(self, task_id: str, history: int | None = None) -> Task:
        with _refusals():
            return await self._unary.get_task(GetTaskRequest(id=task_id, history_length=history))

    async def cancel(self, task_id: str) -> Task:
        with _refusals():
            return await self._unary.cancel_task(CancelTaskRequest(id=task_id))

    @asynccontextmanager
    async def resubscribe(self, task_id: str) -> AsyncIterator[Stream]:
        request = SubscribeToTaskRequest(id=task_id)
        async with aclosing(_refusing(self._streaming.subscribe(request))) as events:
            yield Stream(events)

    async def list(self, **filters: Any) -> ListTasksResponse:
        with _refusals():
            return await self._unary.list_tasks(ListTasksRequest(**filters))


async def _refusing(
    events: AsyncIterator[StreamResponse],
) -> AsyncGenerator[StreamResponse, None]:
    with _refusals():
        async for event in events:
            yield event


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except A2AError as exc:
        raise Refusal(JSON_RPC_ERROR_CODE_MAP.get(type(exc)), exc.message) from exc


async def every_way(client: Client, *content: str | Part, **more: Any) -> tuple[Task, Stream]:
    """Ask and wait, and ask and stream, at the same time; both must end the same and be kept so.

    Each gets words of its own at the end, so that faults of the model, which are counted per
    message, strike both.
    """

    def request() -> SendMessageRequest:
        return ask(*content, f"({uuid.uuid4()})", **more)

    async def streamed() -> Stream:
        async with client.stream(request()) as stream:
            await stream.rest()
            return stream

    unary, stream = await asyncio.gather(client.send(request()), streamed())
    assert stream.complete(), "every artifact that was begun was also ended"
    for task in (unary, stream.task):
        assert facts(await client.get(task.id)) == facts(task)
    assert outcome(unary) == outcome(stream.task)
    return unary, stream


@asynccontextmanager
async def connect_all(service: Service) -> AsyncIterator[list[PythonClient]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(PythonClient.connect(service, line)) for line in LINES
        ]


async def on_every_line(
    clients: Iterable[PythonClient], body: Callable[[PythonClient], Awaitable[None]]
) -> None:
    """One body with all clients at the same time, for what takes long."""

    async def noted(client: PythonClient) -> None:
        try:
            await body(client)
        except Exception as exc:
            exc.add_note(f"on line {client.line}")
            raise

    await asyncio.gather(*(noted(client) for client in clients))
