"""Messages to other agents on behalf of a caller, in a chain of agents that call each other."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.outbound.agents import Rude, frame, streaming, task
from tests.running import Upstream, service


@pytest.mark.xfail(
    strict=True,
    raises=pytest.fail.Exception,
    reason="A method of an extension does not learn at which depth it is called, so this one "
    "begins at 1 each time, and a loop through it has no end.",
)
async def test_a_message_to_a_peer_is_one_call_deeper_than_the_request(
    fake: Upstream, tmp_path: Path
) -> None:
    async with Rude.open() as agent:
        agent.answers["SendStreamingMessage"] = streaming(frame(task("COMPLETED", "Done.")))
        config = tmp_path / "settings.toml"
        config.write_text(f'[peers.rude]\nurl = "{agent.url}"\n')
        with service(fake, tmp_path, config=str(config)) as running:
            async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
                params = {"peer": "rude", "text": "hello"}
                answer = await client.post(
                    "/",
                    json={
                        "jsonrpc": "2.0",
                        "id": 1,
                        "method": "opencode.peers.send",
                        "params": params,
                    },
                    headers={**running.headers, "A2A-Call-Depth": "2"},
                )
        assert answer.json()["result"]["answer"] == "Done.", "it works, but for the depth"
        (_, headers) = agent.asked[-1]
        if headers["a2a-call-depth"] != "3":
            pytest.fail(f"sent at depth {headers['a2a-call-depth']}")
