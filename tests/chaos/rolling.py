"""A rolling restart under load: three nodes are replaced, one after the other, by others.

    python -m tests.chaos.rolling --proxy haproxy --seed 1

Behind a real HAProxy or nginx, with the configuration that docs/deploy-cluster.md has. Each new
node is started beside the old one at the same OpenCode, then the old one is drained and ends.
Clients send, stream, cancel and answer all the time, and no request may fail. The last line says
RESULT.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from opencode_a2a.opencode.process import free_port
from tests.chaos.cluster import TOPOLOGIES, say
from tests.chaos.crowd import HEADERS, Crowd
from tests.chaos.upstreams import Fake, Upstream
from tests.chaos.victim import Victim
from tests.postgres import Postgres
from tests.running import ROOT

PAGE = ROOT / "docs/deploy-cluster.md"
NGINX = """\
daemon off; pid nginx.pid; error_log stderr warn;
events {{ worker_connections 1024; }}
http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f;
uwsgi_temp_path u; scgi_temp_path s;
{config}
}}
"""


def configuration(kind: str, port: int, servers: Sequence[str]) -> str:
    """What the page says, with these addresses and without TLS."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines: list[str] = []
    for line in found.splitlines():
        if re.match(r"\s+server \S*10\.0\.0\.|\s+server \S+ 10\.0\.0\.", line):
            if not any("127.0.0.1:" in each for each in lines[-1:]):
                lines += [
                    re.sub(r"server (?:\w+ )?10\.0\.0\.\d+:8000", _server(kind, number, at), line)
                    for number, at in enumerate(servers)
                ]
        elif re.match(r"\s+(listen|bind) ", line):
            lines.append(f"    {'listen' if kind == 'nginx' else 'bind'} 127.0.0.1:{port}"
                         + (";" if kind == "nginx" else ""))  # fmt: skip
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _server(kind: str, number: int, address: str) -> str:
    return f"server {address}" if kind == "nginx" else f"server n{number} {address}"


@contextmanager
def proxy(kind: str, folder: Path, servers: Sequence[str]) -> Iterator[str]:
    """The address of a load balancer in front of these servers."""
    port = free_port()
    config = configuration(kind, port, servers)
    file = folder / f"{kind}.conf"
    program = shutil.which(kind) or shutil.which(kind, path="/usr/sbin")
    assert program is not None, f"{kind} is not installed"
    if kind == "nginx":
        file.write_text(NGINX.format(config=config))
        command = [program, "-p", str(folder), "-c", str(file)]
    else:
        file.write_text(config)
        command = [program, "-db", "-f", str(file)]
    with (folder / f"{kind}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


class Strict(Crowd):
    """Clients that count every request that fails, though they ask again."""

    @property
    def failed(self) -> dict[str, int]:
        expected = ("TASK_NOT_CANCELABLE", "INTERRUPT_REQUEST_NOT_FOUND", "UNSUPPORTED_OPERATION")
        return {
            name: count
            for name, count in self.counts.items()
            if name.startswith(("answered ", "not answered")) and not name.endswith(expected)
        }


class Upgrade:
    def __init__(self, stack: AsyncExitStack, folder: Path, crowd: Strict) -> None:
        self._stack, self._folder, self.crowd = stack, folder, crowd
        self.settings: dict[str, str] = {}

    async def node(
        self, upstream: Upstream, name: str, opencode: str, port: int, **more: str
    ) -> Victim:
        own = self._folder / name
        own.mkdir()
        settings = {
            **self.settings,
            "A2A_NODE_NAME": name,
            "A2A_NODE_OPENCODE": opencode,
            "A2A_SHUTDOWN_GRACE_SECONDS": "5",
            **more,
        }
        victim = Victim(
            upstream, upstream.url, own, own / "unused", self.crowd.http, settings, port=port
        )
        return await self._stack.enter_async_context(victim.running())

    async def drained(self, old: Victim, name: str) -> float:
        """Drain a node, and wait until it has ended by itself; how long that took."""
        began = time.monotonic()
        code, said = await old.command("nodes", "drain", name)
        assert code == 0, said
        async with asyncio.timeout(180):
            while old.alive:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return time.monotonic() - began


@asynccontextmanager
async def _world(
    kind: str, seed: int, ports: Sequence[int]
) -> AsyncIterator[tuple[Upgrade, list[Upstream]]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rolling-")))
        os.chmod(folder, 0o755)  # noqa: PTH101 (nginx works as another user)
        postgres = stack.enter_context(Postgres.started())
        (folder / "work").mkdir()
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, headers=HEADERS, read_bufsize=1 << 20)
        )
        upstreams: list[Upstream] = [
            await stack.enter_async_context(Fake.start(folder / f"oc-{number}", http))
            for number in range(2)
        ]
        servers = [f"127.0.0.1:{port}" for port in ports]
        url = stack.enter_context(proxy(kind, folder, servers))
        crowd = Strict(url, upstreams[0], http, random.Random(seed))
        upgrade = Upgrade(stack, folder, crowd)
        upgrade.settings = {
            "A2A_TASK_STORE_DATABASE_URL": postgres.url(),
            "OPENCODE_WORKSPACE_ROOT": str(folder / "work"),
        }
        yield upgrade, upstreams


async def campaign(given: argparse.Namespace) -> bool:
    ports = [free_port() for _ in range(6)]
    async with _world(given.proxy, given.seed, ports) as (upgrade, upstreams):
        crowd = upgrade.crowd
        which = TOPOLOGIES["mixed"]
        old = [
            await upgrade.node(upstreams[number], f"old-{name}", f"oc-{number}", port)
            for name, number, port in zip("abc", which, ports[:3], strict=True)
        ]
        await asyncio.sleep(2)  # for the load balancer to see them
        working = [asyncio.create_task(crowd.client(number)) for number in range(given.clients)]
        await asyncio.sleep(given.calm)
        for name, number, port, before in zip("abc", which, ports[3:], old, strict=True):
            await upgrade.node(upstreams[number], f"new-{name}", f"oc-{number}", port)
            say(f"new-{name} serves")
            await asyncio.sleep(given.calm)
            took = await upgrade.drained(before, f"old-{name}")
            say(f"old-{name} was drained and has ended, {took:.1f} s")
            await asyncio.sleep(given.calm)
        crowd.stopping = True
        async with asyncio.timeout(240):
            await asyncio.gather(*working)
        for task in sorted(crowd.history.finals)[:40]:
            await crowd.replay(task)
        return _verdict(crowd)


def _verdict(crowd: Strict) -> bool:
    for name, count in sorted(crowd.counts.items()):
        say(f"{name:48} {count:>8}")
    history = crowd.history
    history.heard.update(each.tag for each in history.wanted.values())  # not counted here
    violations = list(history.violations())
    for sentence in violations[:20]:
        say(f"VIOLATION {sentence}")
    say(f"failed requests: {crowd.failed or 0}")
    return not violations and not crowd.failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.rolling", description=__doc__)
    parser.add_argument("--proxy", choices=("haproxy", "nginx"), default="haproxy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--calm", type=float, default=5.0, help="seconds between two steps")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    fine = asyncio.run(campaign(given))
    say(f"{time.monotonic() - began:.0f} seconds")
    say(f"RESULT {'ok' if fine else 'FAILED'}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
