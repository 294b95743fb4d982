"""What a start leaves for later: it is most of what there is to load and to build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.running import TOKEN, isolated

# As far as it goes before anybody is asked: settings, the tables of a new file, the public card.
START = """
import asyncio, sys
import opencode_a2a.cli.program
from opencode_a2a.app import publication
from opencode_a2a.config import load
from opencode_a2a.store.database import Database
from pydantic import BaseModel

async def make_the_tables(url):
    async with Database.open(url):
        pass

def below(model):
    return {model}.union(*map(below, model.__subclasses__()))

settings = load(None, None)
asyncio.run(make_the_tables(settings.state.url(settings.upstream.workspace_root)))
assert publication(settings, "http://here").card.pure.body
"""
LOADED = "print(*sys.modules)"
BUILT = """
for model in below(BaseModel):
    if model.__pydantic_complete__:
        print(model.__module__, model.__qualname__, sep=".")
"""

TERMINAL = {"markdown_it", "prompt_toolkit"}  # for `call` on one
LATER = {
    *("sqlalchemy.orm", "sqlalchemy.dialects.postgresql"),  # for other databases, or never
    *("a2a", "httpx", "mcp", "mcp_types", "opencode_a2a.toolserver"),  # for those who have peers
    *("jwt", "cryptography", "opencode_a2a.web.oidc"),  # for those who have an issuer
    *("opencode_a2a.demo.model", "jsonschema"),  # for the demo; for tests
    *TERMINAL,
}
DEFAULTS = {  # of other parameters, so they have to be built
    "opencode_a2a.extensions.sessions.ForkRequest",
    "opencode_a2a.extensions.shapes.Routing",
    "opencode_a2a.extensions.watching.Follow",
    "opencode_a2a.extensions.workspaces.NewWorktree",
}


def said(folder: Path, what: str) -> set[str]:
    env = isolated(
        folder / "home",
        OPENCODE_WORKSPACE_ROOT=str(folder),
        A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{folder / 'tasks.db'}",
        A2A_BEARER_TOKEN=TOKEN,
    )
    command = [sys.executable, "-c", START + what]
    ran = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60)
    return set(ran.stdout.split())


def test_a_start_loads_nothing_that_only_later_work_needs(tmp_path: Path) -> None:
    loaded = said(tmp_path, LOADED)
    assert {"opencode_a2a.cli.up", "sqlalchemy", "starlette"} <= loaded
    assert not LATER & loaded


def test_a_start_builds_no_model_of_what_may_be_sent_one_day(tmp_path: Path) -> None:
    built = said(tmp_path, BUILT)
    built = {name for name in built if name.startswith("opencode_a2a.")}
    settings = {name for name in built if name.startswith("opencode_a2a.config.")}
    assert "opencode_a2a.config.Server" in settings
    assert built - settings == DEFAULTS


def test_a_call_loads_nothing_that_only_a_terminal_needs() -> None:
    code = "import sys, opencode_a2a.cli.call"
    command = [sys.executable, "-c", f"{code}; {LOADED}"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    loaded = set(ran.stdout.split())
    assert {"opencode_a2a.cli.conversation", "a2a.client"} <= loaded
    assert not TERMINAL & loaded
