"""Many isolated contexts at once on the real OpenCode."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running import Service, Upstream

Json = dict[str, Any]
CONTEXTS = int(os.environ.get("CONTEXTS", "4"))
SECONDS = 300.0  # on a busy machine; each directory costs OpenCode more than a second of work
MODES = ["text/plain", "text/x-diff"]  # the answer and the changes
AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")


def git(folder: Path, *words: str) -> str:
    told = subprocess.run(
        ["git", *AUTHOR, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


def sent(http: httpx.Client, text: str) -> Json:
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {
        "message": message,
        "metadata": {"opencode": {"isolation": "worktree"}},
        "configuration": {"returnImmediately": True, "acceptedOutputModes": MODES},
    }
    task: Json = http.post("/message:send", json=body).raise_for_status().json()["task"]
    return task


def ended(http: httpx.Client, task: Json, deadline: float) -> Json:
    while task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"):
        assert time.monotonic() < deadline, task
        time.sleep(0.1)
        task = http.get(f"/tasks/{task['id']}").raise_for_status().json()
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return task


def finish(http: httpx.Client, task: Json, action: str, **more: object) -> Json:
    directory = task["metadata"]["opencode"]["worktree"]["directory"]
    params = {"request": {"directory": directory, "action": action, **more}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "opencode.worktrees.finish", "params": params}
    answer: Json = http.post("/", json=body).json()
    return answer


@pytest.mark.timeout(2 * SECONDS)
def test_contexts_that_change_one_file_at_once_leave_a_clean_branch_each(
    real_service: Service, opencode: Upstream
) -> None:
    main, name = opencode.workspace, f"shared-{uuid.uuid4().hex[:8]}.txt"
    (main / name).write_text("first\n")
    git(main, "add", name)
    git(main, "commit", "-q", "-m", f"add {name}")
    command = '[[tool:bash {"command":"echo %d > %s","description":"Writes"}]]'
    headers = real_service.headers | {"a2a-version": "1.0"}
    with httpx.Client(base_url=real_service.url, headers=headers, timeout=120) as http:
        asked = [
            sent(http, f"Write number {number} {command % (number, name)}")
            for number in range(CONTEXTS)
        ]
        deadline = time.monotonic() + SECONDS
        tasks = [ended(http, task, deadline) for task in asked]
        assert git(main, "status", "--porcelain", name) == ""
        for number, task in enumerate(tasks):
            [changes] = [each for each in task["artifacts"] if each["name"] == "changes"]
            assert f"-first\n+{number}\n" in changes["parts"][0]["text"]
            kept = finish(http, task, "keep", remove=True)["result"]["item"]
            assert (kept["committed"], kept["worktree_removed"]) == (True, True)
            assert kept["branch"].startswith(f"a2a/write-number-{number}-")
            assert git(main, "show", f"{kept['branch']}:{name}") == str(number)
            assert git(main, "rev-list", "--count", f"HEAD..{kept['branch']}") == "1"
        # One can be merged. The others conflict with it, and are dropped.
        *others, last = tasks
        assert finish(http, last, "merge")["result"]["item"]["merged"] == "fast-forward"
        assert (main / name).read_text() == f"{CONTEXTS - 1}\n"
        for task in others:
            [refused] = finish(http, task, "merge")["error"]["data"]
            assert (refused["reason"], refused["metadata"]["files"]) == ("MERGE_REFUSED", name)
            assert finish(http, task, "drop", discard=True)["result"]["item"]["branch_deleted"]
    assert not git(main, "branch", "--list", "a2a/*")
