"""Clients over restarts of the service, which say whether anything was lost. No packages.

python stream.py read URL TOKEN         follow one task
python stream.py load URL TOKEN FILE    send messages, one after the other, until there is a FILE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from uuid import uuid4

ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED")
SECONDS = 600.0


class Client:
    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
        self.refused = 0

    def send(self, method: str, text: str, message_id: str) -> Request:
        message = {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}]}
        headers = {**self._headers, "Content-Type": "application/json"}
        return Request(f"{self._url}/{method}", json.dumps({"message": message}).encode(), headers)

    def get(self, path: str, **headers: str) -> Request:
        return Request(f"{self._url}/{path}", headers={**self._headers, **headers})

    def lost(self, exc: OSError) -> None:
        self.refused += "refused" in str(exc)
        time.sleep(0.2)


class Reader(Client):
    """Follows a task, from the last event that it has seen."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, token)
        self._task, self._last, self._text, self._state = "", "", "", ""
        self._streams = 0

    def run(self) -> dict[str, object]:
        deadline, message_id = time.monotonic() + SECONDS, uuid4().hex
        while self._state not in ENDED and time.monotonic() < deadline:
            if self._task:
                request = self.get(f"tasks/{self._task}:subscribe", **{"Last-Event-ID": self._last})
            else:
                request = self.send("message:stream", "Say hello slowly.", message_id)
            try:
                with urlopen(request, timeout=120) as response:
                    self._streams += 1
                    print("open", flush=True)  # noqa: T201
                    for line in response:
                        self._take(line.decode().rstrip("\n"))
            except HTTPError as exc:
                if exc.code == 400:  # the task has ended meanwhile, and has no stream any longer
                    break
                self.lost(exc)
            except (OSError, URLError) as exc:
                self.lost(exc)
        with urlopen(self.get(f"tasks/{self._task}")) as response:
            stored = json.load(response)
        return {
            "task": self._task,
            "state": stored["status"]["state"],
            "streams": self._streams,
            "refused": self.refused,
            "is_whole": self._text == _text((stored.get("artifacts") or [{"parts": []}])[-1]),
        }

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name == "id":
            self._last = value.strip()
        if name != "data":
            return
        event = json.loads(value)
        if task := event.get("task"):
            self._task, self._state = task["id"], task["status"]["state"]
            self._text = _text(task["artifacts"][-1]) if task.get("artifacts") else ""
        elif update := event.get("artifactUpdate"):
            piece = _text(update["artifact"])
            self._text = self._text + piece if update.get("append") else piece
        elif update := event.get("statusUpdate"):
            self._state = update["status"]["state"]


class Load(Client):
    """Sends messages. One whose answer is lost is sent again, as the same message."""

    def run(self, stop: Path) -> dict[str, object]:
        tasks, repeated = set[str](), 0
        while not stop.exists():
            message_id, deadline = uuid4().hex, time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                request = self.send("message:send", "Say hello.", message_id)
                try:
                    with urlopen(request, timeout=120) as response:
                        task = json.load(response)["task"]
                except (OSError, URLError) as exc:
                    repeated += 1
                    self.lost(exc)
                    continue
                if task["status"]["state"] in ENDED:
                    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
                    tasks.add(task["id"])
                    print("answered", flush=True)  # noqa: T201
                    break
                time.sleep(0.2)
            else:
                raise TimeoutError(message_id)
        return {"answered": len(tasks), "repeated": repeated, "refused": self.refused}


def _text(artifact: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in artifact["parts"])


if __name__ == "__main__":
    command, url, token, *rest = sys.argv[1:]
    result = Reader(url, token).run() if command == "read" else Load(url, token).run(Path(rest[0]))
    print(json.dumps(result))  # noqa: T201
