"""Record what the real OpenCode does about one prompt, for `test_recordings.py` to replay.

    python -m tests.recordings 40-words 'Hello [[tokens:5]]'
    python -m tests.recordings 41-bash '[[tool:bash {"command": "date"}]]' \\
        --config '{"permission": {"bash": "ask"}}' --reply once

The scripted model answers, so the prompt says what happens (see `demo/model.py`). OPENCODE_COMMAND
chooses another OpenCode. Paths of the machine are replaced by made-up ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.running import Upstream, real_opencode

HERE = Path(__file__).parent
SECONDS, SILENCE = 120.0, 1.0  # for the whole run; after its end, for what still comes

Json = dict[str, Any]


@dataclass
class Recorder:
    http: httpx.Client
    reply: str | None
    lines: list[Json] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    began: float = field(default_factory=time.monotonic)

    def note(self, src: str, **more: Any) -> None:
        with self.news:
            at = round(time.monotonic() - self.began, 4)
            self.lines.append({"t": at, "src": src, **more})
            self.news.notify_all()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        self.note("http-req", method=method, path=path, body=body)
        answer = self.http.request(method, path, json=body)
        told = answer.json() if answer.content else None
        self.note("http-res", method=method, path=path, status=answer.status_code, body=told)
        return told

    def listen(self, connected: threading.Event) -> None:
        with suppress(httpx.HTTPError), self.http.stream("GET", "/event") as response:
            for line in response.iter_lines():
                if line.startswith("data:"):
                    self.note("/event", event=json.loads(line.removeprefix("data:")))
                    connected.set()

    def since(self, read: int, patience: float) -> list[Json]:
        """The lines after so many, waiting for some; none when all was silent."""
        with self.news:
            self.news.wait_for(lambda: len(self.lines) > read, patience)
            return self.lines[read:]

    def run(self, prompt: str) -> None:
        session = self.ask("POST", "/session", {})["id"]
        asked = {"parts": [{"type": "text", "text": prompt}]}
        self.ask("POST", f"/session/{session}/prompt_async", asked)
        read, deadline = 0, time.monotonic() + SECONDS
        while new := self.since(read, deadline - time.monotonic()):
            read += len(new)
            for event in (line["event"] for line in new if "event" in line):
                about = event["properties"]
                if event["type"] == "permission.asked" and self.reply:
                    answer = {"reply": self.reply}
                    self.ask("POST", f"/permission/{about['id']}/reply", answer)
                if event["type"] == "session.idle" and about["sessionID"] == session:
                    deadline = min(deadline, time.monotonic() + SILENCE)
        self.ask("GET", f"/session/{session}/message")


def record(upstream: Upstream, prompt: str, reply: str | None) -> list[Json]:
    login = ("opencode", upstream.password or "")
    with httpx.Client(base_url=upstream.base_url, auth=login, timeout=SECONDS) as http:
        recorder, connected = Recorder(http, reply), threading.Event()
        threading.Thread(target=recorder.listen, args=(connected,), daemon=True).start()
        assert connected.wait(SECONDS), "OpenCode sends no events"
        recorder.run(prompt)
        return list(recorder.lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.recordings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="of the file, without .jsonl")
    parser.add_argument("prompt")
    parser.add_argument("--config", type=json.loads, default={}, help="of OpenCode, as JSON")
    parser.add_argument("--reply", choices=("once", "always", "reject"), help="to permissions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with real_opencode(Path(folder), **given.config) as upstream:
            lines = record(upstream, given.prompt, given.reply)
        told = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        told = told.replace(f"{folder}/workspace", "/srv/demo/project").replace(folder, "/srv/demo")
    (HERE / f"{given.name}.jsonl").write_text(told, encoding="utf-8")


if __name__ == "__main__":
    main()
