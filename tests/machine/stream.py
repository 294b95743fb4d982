"""Follow one task over restarts of the service, and say whether anything was lost. No packages.

python stream.py URL TOKEN
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED")


class Reader:
    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
        self._task, self._last, self._text, self._state = "", "", "", ""
        self._streams, self._refused = 0, 0

    def run(self) -> dict[str, object]:
        deadline = time.monotonic() + 600
        while self._state not in ENDED and time.monotonic() < deadline:
            try:
                with urlopen(self._request(), timeout=120) as response:
                    self._streams += 1
                    print("open", flush=True)  # noqa: T201
                    for line in response:
                        self._take(line.decode().rstrip("\n"))
            except (OSError, URLError) as exc:
                self._refused += "refused" in str(exc)
                time.sleep(0.2)
        with urlopen(Request(f"{self._url}/tasks/{self._task}", headers=self._headers)) as response:
            stored = json.load(response)
        return {
            "state": self._state,
            "streams": self._streams,
            "refused": self._refused,
            "is_whole": self._text == _text(stored["artifacts"][-1]),
        }

    def _request(self) -> Request:
        if self._task:
            headers = {**self._headers, "Last-Event-ID": self._last}
            return Request(f"{self._url}/tasks/{self._task}:subscribe", headers=headers)
        parts = [{"text": "Say hello slowly."}]
        message = {"messageId": "over-restarts", "role": "ROLE_USER", "parts": parts}
        headers = {**self._headers, "Content-Type": "application/json"}
        body = json.dumps({"message": message}).encode()
        return Request(f"{self._url}/message:stream", body, headers)

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


def _text(artifact: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in artifact["parts"])


if __name__ == "__main__":
    print(json.dumps(Reader(*sys.argv[1:]).run()))  # noqa: T201
