"""Who is a newcomer: nothing of OpenCode's chooses a model or holds a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencode_a2a.opencode.providers import may_be_configured


@pytest.mark.parametrize(
    ("file", "text", "configured"),
    [
        ("home/.config/opencode/opencode.jsonc", '{"$schema": "https://opencode.ai/x"}', False),
        ("home/.config/opencode/opencode.jsonc", '{"model": "mine/m"}', True),
        ("home/.config/opencode/config.json", '{"plugin": ["mine"]}', True),
        ("home/.local/share/opencode/auth.json", "{}", True),
        ("code/project/opencode.json", '{"provider": {}}', True),
        ("code/opencode.json", '{"provider": {}}', True),
        ("code/project/.opencode/opencode.json", '{"model": "mine/m"}', True),
        ("code/project/config.json", '{"model": "of the project itself"}', False),
    ],
)
def test_a_file_of_opencode_that_may_choose_a_model_counts(
    tmp_path: Path, file: str, text: str, configured: bool
) -> None:
    project = tmp_path / "code" / "project"
    project.mkdir(parents=True)
    environment = {"HOME": str(tmp_path / "home")}
    assert not may_be_configured(environment, project)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert may_be_configured(environment, project) is configured


def test_a_configuration_in_the_environment_counts(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "OPENCODE_CONFIG_CONTENT": "{}"}
    assert may_be_configured(environment, tmp_path)
