"""A client of `opencode.tasks.watch`, as a page is one: it keeps what the events say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.api.forms import Form, Json, blocks


def opening(client: httpx.Client, form: Form, *, last_id: str | None = None, **params: Any) -> Any:
    headers = form.version | ({"last-event-id": last_id} if last_id is not None else {})
    body = {"jsonrpc": "2.0", "id": 1, "method": "opencode.tasks.watch", "params": params}
    return client.stream("POST", "/", json=body, headers=headers)


@dataclass
class Page:
    """What one page shows, across as many streams as it takes."""

    form: Form
    last_id: str | None = None
    summaries: dict[str, Json] = field(default_factory=dict)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)  # by task and artifact
    ended: set[str] = field(default_factory=set)  # tasks whose last event was seen
    is_ready: bool = False
    results: list[Json] = field(default_factory=list)

    def state(self, task_id: str) -> str | None:
        found = self.summaries.get(task_id)
        return found["status"]["state"] if found is not None else None

    def text(self, task_id: str) -> str:
        return "".join(self.texts[task_id].values())

    @contextmanager
    def watching(self, client: httpx.Client, **params: Any) -> Iterator[Iterator[Json]]:
        """A stream that begins where the last one of this page was left."""
        with opening(client, self.form, last_id=self.last_id, **params) as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            yield self._results(response)

    def until(self, client: httpx.Client, arrived: Callable[[], bool], **params: Any) -> None:
        with self.watching(client, **params) as results:
            for _ in results:
                if arrived():
                    return
        raise AssertionError("the stream has ended")

    def _results(self, response: httpx.Response) -> Iterator[Json]:
        for block in blocks(response):
            if block.startswith(":"):
                continue
            name, data = block.split("\n")
            assert name.startswith("id: "), block
            result: Json = json.loads(data.removeprefix("data: "))["result"]
            self.take(result)
            self.last_id = name.removeprefix("id: ")
            yield result

    def take(self, result: Json) -> None:
        self.results.append(result)
        (kind,) = result
        if kind == "summary":
            summary = result["summary"]
            assert "artifacts" not in summary
            assert "history" not in summary
            self.summaries[summary["id"]] = summary
        elif kind == "event":
            self._take_event(result["event"])
        else:
            assert result == {"ready": True}
            self.is_ready = True

    def _take_event(self, event: Json) -> None:
        if self.form.tagged:
            kind, body = event["kind"], event
        else:
            ((kind, body),) = event.items()
        if kind == "task":
            self.texts[body["id"]] = {a["artifactId"]: _text(a) for a in body["artifacts"]}
        elif kind in ("artifactUpdate", "artifact-update"):
            shown, artifact = self.texts[body["taskId"]], body["artifact"]
            before = shown.get(artifact["artifactId"], "") if body.get("append") else ""
            shown[artifact["artifactId"]] = before + _text(artifact)
        ends = {self.form.state(name) for name in ("completed", "failed", "canceled")}
        if kind not in ("artifactUpdate", "artifact-update") and body["status"]["state"] in ends:
            self.ended.add(body["id"] if kind == "task" else body["taskId"])


def _text(artifact: Json) -> str:
    return "".join(part["text"] for part in artifact["parts"])
