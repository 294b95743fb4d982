"""The two OpenCodes chaos is made with, seen alike: what they are asked, and what they remember."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from opencode_a2a.opencode.http import Endpoint
from opencode_a2a.opencode.process import child_environment, free_port
from tests.fakes import model
from tests.fakes.opencode import MARK, expected_text
from tests.running import ROOT, isolated, opencode2_command, opencode_command, running

PASSWORD = "chaos"
TAG = re.compile(r"#\d+-\d+-\d+#")
GLYPHS = "naïve Straße 語言 🙂🚀 €"
READY_SECONDS = 180.0


class Upstream(Protocol):
    url: str
    password: str | None
    workspace: Path

    def phrase(self, tag: str, dice: random.Random, length: float = 1.0) -> str:
        """A prompt, recognisable by its tag, that is answered in about that many seconds."""
        ...

    def waiting_phrase(self, tag: str) -> str | None:
        """A prompt that makes the agent wait for a person, where that can be asked for."""
        ...

    def expected(self, session: str, text: str) -> str:
        """The answer to such a prompt."""
        ...

    async def heard(self, sessions: Collection[str]) -> Counter[str]:
        """How often the model was asked in these sessions, by the tag of what it was asked."""
        ...

    async def stored(self, session: str) -> list[dict[str, Any]]: ...

    async def lose(self) -> None:
        """Die and come back: what was running is gone, what was stored is there."""
        ...

    async def pause(self, seconds: float) -> None: ...


def _asks(message: dict[str, Any]) -> bool:
    return bool(message["info"]["role"] == "user")


async def stopped_for(seconds: float, pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class Fake:
    """The fast one, in a process of its own."""

    password: str | None = None

    def __init__(self, url: str, pid: int, workspace: Path, http: aiohttp.ClientSession) -> None:
        self.url, self._pid, self.workspace, self._http = url, pid, workspace, http

    @classmethod
    @asynccontextmanager
    async def start(cls, folder: Path, http: aiohttp.ClientSession) -> AsyncIterator[Fake]:
        workspace = folder / "workspace"
        workspace.mkdir(parents=True)
        command = [sys.executable, "-m", "tests.fakes.opencode", "--port", "0"]
        env = isolated(folder / "home", PYTHONPATH=f"{ROOT / 'src'}:{ROOT}")
        with running(command, env, ROOT) as program:
            found = await asyncio.to_thread(program.wait_for, r"listening on (http://\S+)")
            yield cls(found[1], program.process.pid, workspace, http)

    def phrase(self, tag: str, dice: random.Random, length: float = 1.0) -> str:
        if dice.random() < 0.15:
            return f"{tag} {GLYPHS}"
        tokens = dice.randint(5, 250)
        marks = f"[[tokens:{tokens}]] [[rate:{max(20, int(tokens / length / dice.random()))}]]"
        if dice.random() < 0.3:
            marks += f" [[size:{dice.choice((1, 13, 40))}]]"
        if dice.random() < 0.15:
            marks += " [[reason:5]]"
        if dice.random() < 0.1:
            marks += " [[tool:bash]]"
        return f"{tag} {marks} {GLYPHS}"

    def waiting_phrase(self, tag: str) -> str | None:
        return f"{tag} [[permission]]"

    def expected(self, session: str, text: str) -> str:
        marks = dict(MARK.findall(text))
        if "tokens" in marks:
            return expected_text(session, int(marks["tokens"]), int(marks.get("size", 6)))
        return f"TOOL RESULT: {marks['tool']} done\n" if "tool" in marks else f"ECHO: {text}"

    async def heard(self, sessions: Collection[str]) -> Counter[str]:
        """Each run has one answer that calls no tool; a repeated prompt that joins has none."""
        heard: Counter[str] = Counter()
        for session in sessions:
            messages = await self.stored(session)
            tags = {
                m["info"]["id"]: TAG.findall(m["parts"][0]["text"]) for m in messages if _asks(m)
            }
            for message in messages:
                info = message["info"]
                if not _asks(message) and info.get("finish") != "tool-calls":
                    heard.update(tags.get(info["parentID"], ()))
        return heard

    async def stored(self, session: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = await self._get(f"/session/{session}/message")
        return messages

    async def lose(self) -> None:
        async with self._http.post(f"{self.url}/__lose") as response:
            assert response.status == 200

    async def pause(self, seconds: float) -> None:
        await stopped_for(seconds, self._pid)

    async def _get(self, path: str) -> Any:
        async with self._http.get(self.url + path) as response:
            return await response.json()


class Real:
    """`opencode serve` on the scripted model, which runs in our own process and survives."""

    password: str | None = PASSWORD

    @staticmethod
    def command() -> str:
        return opencode_command()

    def __init__(
        self,
        folder: Path,
        model_url: str,
        http: aiohttp.ClientSession,
        home: Path,
        *,
        asks: bool = False,
    ) -> None:
        self._folder, self._model, self._http = folder, model_url.removesuffix("/v1"), http
        self._asks = asks
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.workspace = folder / "workspace"
        config = model.opencode_config(model_url) | {"snapshot": False}
        if asks:
            config["permission"] = {"bash": "ask"}
        self._env = child_environment(isolated(home), PASSWORD, config)
        self._login = Endpoint(self.url, password=PASSWORD).authorization
        self._process: subprocess.Popen[bytes] | None = None
        self._heard: Counter[str] = Counter()

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        folder: Path,
        http: aiohttp.ClientSession,
        home: Path | None = None,
        *,
        asks: bool = False,
    ) -> AsyncIterator[Real]:
        """`asks`: before it runs a command."""
        async with model.serve() as model_url:
            self = cls(folder, model_url, http, home or folder / "home", asks=asks)
            self.workspace.mkdir(parents=True)
            try:
                await self._run()
                yield self
            finally:
                self._kill()

    async def _run(self) -> None:
        log = self._folder / "opencode.log"
        with log.open("ab") as sink:
            before = sink.tell()
            command = [self.command(), "serve", "--hostname", "127.0.0.1"]
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [*command, "--port", str(self._port)],
                cwd=self.workspace,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        async with asyncio.timeout(READY_SECONDS):
            while b"listening on" not in log.read_bytes()[before:]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)

    def phrase(self, tag: str, dice: random.Random, length: float = 1.0) -> str:
        if dice.random() < 0.3:
            return f"{tag} {GLYPHS * dice.randint(1, 8)} [[delay:{dice.randint(1, 30)}]]"
        tokens = dice.randint(5, 60)
        return f"{tag} [[tokens:{tokens}]] [[delay:{int(1500 * length * dice.random() / tokens)}]]"

    def waiting_phrase(self, tag: str) -> str | None:
        """Without its tag: the model is asked twice, before the command and after it."""
        return '[[tool:bash {"command": "echo hi"}]]' if self._asks else None

    def expected(self, session: str, text: str) -> str:
        answer = model.plan(model.ChatRequest(text=text))
        return "".join(answer.deltas) if isinstance(answer, model.Reply) else ""

    async def heard(self, sessions: Collection[str]) -> Counter[str]:
        url = f"{self._model}/requests"
        async with self._http.get(url) as response:
            requests = await response.json()
        async with self._http.delete(url):  # it remembers only so many
            pass
        for request in requests:
            if request["kind"] == "chat":
                self._heard.update(TAG.findall(request["text"]))
        return self._heard

    async def stored(self, session: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = await self._get(f"/session/{session}/message")
        return messages

    async def _get(self, path: str) -> Any:
        async with self._http.get(self.url + path, headers=self._login) as response:
            return await response.json()

    async def lose(self) -> None:
        self._kill()
        await self._run()

    async def pause(self, seconds: float) -> None:
        if self._process is not None:
            await stopped_for(seconds, self._process.pid)


class Real2(Real):
    """OpenCode 2. An answer belongs to the prompt before it."""

    @staticmethod
    def command() -> str:
        command = opencode2_command()
        assert command, "npm has no OpenCode 2 for this system"
        return command

    async def stored(self, session: str) -> list[dict[str, Any]]:
        """In the form of 1.x, as far as the checks read it."""
        stored: list[dict[str, Any]] = []
        path, prompt = f"/api/session/{session}/message?limit=200", None
        page = await self._get(f"{path}&order=asc")
        while page["data"]:
            for each in page["data"]:
                if each["type"] == "user":
                    prompt = each["id"]
                    info = {"id": prompt, "role": "user"}
                    stored.append({"info": info, "parts": [{"type": "text", "text": each["text"]}]})
                elif each["type"] == "assistant":
                    info = {"id": each["id"], "role": "assistant", "parentID": prompt}
                    stored.append({"info": info, "parts": each["content"]})
            page = await self._get(f"{path}&cursor={page['cursor']['next']}")
        return stored
