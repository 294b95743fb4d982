"""LiteLLM: an agent as a model `a2a/…`, and its A2A client for conversations."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import litellm
from a2a.compat.v0_3.types import MessageSendParams, SendMessageRequest
from litellm.a2a_protocol import A2AClient
from litellm.llms.a2a.common_utils import extract_text_from_a2a_response

from tests.interop.driver import Lacking, Service, main


class LiteLLM:
    def __init__(self, service: Service) -> None:
        self._model = {
            "model": "a2a/opencode",
            "api_base": service.url,
            "api_key": service.token,
        }
        self._client = A2AClient(service.url, extra_headers=service.headers)

    async def discover(self) -> str:
        return (await self._client.get_agent_card()).name

    async def ask(self, prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        answer = await litellm.acompletion(**self._model, messages=messages)
        return answer.choices[0].message.content

    async def stream(self, prompt: str) -> list[str]:
        messages = [{"role": "user", "content": prompt}]
        chunks = await litellm.acompletion(**self._model, messages=messages, stream=True)
        pieces = [chunk.choices[0].delta.content async for chunk in chunks]
        return [piece for piece in pieces if piece]

    async def converse(self, prompts: list[str]) -> list[str]:
        """With its A2A client: a model `a2a/…` knows no contexts, only histories."""
        shown, last = [], {}
        for prompt in prompts:
            answer = await self._client.send_message(_request(prompt, **last))
            told = answer.model_dump(mode="json", exclude_none=True)
            shown.append(extract_text_from_a2a_response(told))
            task = told["result"]
            last = {"contextId": task["contextId"]}
            if task["status"]["state"] == "input-required":
                last["taskId"] = task["id"]
        return shown

    async def cancel(self, prompt: str) -> str:
        raise Lacking("its A2A client cannot cancel")


def _request(text: str, **more: Any) -> SendMessageRequest:
    message = {"role": "user", "parts": [{"kind": "text", "text": text}], "messageId": uuid4().hex}
    return SendMessageRequest(id=uuid4().hex, params=MessageSendParams(message=message | more))


if __name__ == "__main__":
    main(LiteLLM)
