"""The commands in the README do what it says."""

from __future__ import annotations

import json
import re

from tests.curl import curl
from tests.running import ROOT, Service


def test_every_command_of_the_readme_is_answered_with_a_completed_task(
    fake_service: Service,
) -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^\$ (curl .*?)(?=^\$ |^```)", readme, re.DOTALL | re.MULTILINE)
    said = []
    for command in commands:
        assert " http://127.0.0.1:8000/" in command
        here = command.replace("http://127.0.0.1:8000", fake_service.url)
        answer = curl(here, TOKEN=fake_service.token).raise_for_status()
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert " -sN " in command
            *_, last = re.findall(r"^data: (.*)$", answer.text, re.MULTILINE)
            event = json.loads(last)
            said.append((event.get("result") or event["statusUpdate"])["status"]["state"])
        else:
            body = answer.json()
            said.append((body.get("result") or body["task"])["status"]["state"])
    assert said == ["TASK_STATE_COMPLETED"] * 2 + ["completed"] * 2
