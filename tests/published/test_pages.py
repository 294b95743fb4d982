"""What the pages point to exists, and what they say about settings and scopes is so."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from opencode_a2a.config import load
from opencode_a2a.domain.scopes import DEFAULT_SCOPES, Scope
from tests.pages import FENCE, PAGES, blocks, commands, difference, with_known
from tests.running import ROOT

FOLDERS = (ROOT / "docs", ROOT / "scripts")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in folder.rglob("*.md"))])
GUIDE = ROOT / "docs" / "guide.md"
# Other projects link to these.
PROMISED_ANCHORS = {
    "shared-session-binding-contract",
    "shared-model-selection-contract",
    "shared-stream-hints-contract",
    "opencode-session-query--provider-discovery-a2a-extensions",
    "shared-interrupt-callback-a2a-extension",
}


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    text = FENCE.sub("", document.read_text())
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def test_the_anchors_that_others_link_to_are_in_the_guide() -> None:
    assert anchors(GUIDE) >= PROMISED_ANCHORS


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_to_a_file_or_an_anchor_leads_somewhere(document: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", document.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = document.parent / name if name else document
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_the_guide_lists_the_scopes_and_which_of_them_everybody_has() -> None:
    rows = re.findall(
        r"^\| `([a-z]+(?::[a-z]+)?)` \|.*\| (yes|no) \|$", GUIDE.read_text(), re.MULTILINE
    )
    assert rows == [(scope, "yes" if scope in DEFAULT_SCOPES else "no") for scope in Scope]


def test_the_settings_in_the_guide_can_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in os.environ:
        if name.startswith(("A2A_", "OPENCODE_")):
            monkeypatch.delenv(name)
    (example,) = (block.text for block in blocks("docs/guide.md") if block.language == "toml")
    (credentials,) = (
        block.text
        for block in blocks("docs/guide.md")
        if block.language == "json" and not block.is_result
    )
    file = tmp_path / "a2a.toml"
    file.write_text(example)
    monkeypatch.setenv("A2A_STATIC_AUTH_CREDENTIALS", credentials.replace("…", "x" * 32))
    settings = load(file)
    assert settings.server.port == tomllib.loads(example)["a2a"]["port"]
    assert [entry.principal for entry in settings.server.static_auth_credentials] == ["ci", "ann"]


@pytest.mark.parametrize("page", PAGES)
def test_every_message_that_a_command_sends_is_json(page: str) -> None:
    """Found at once, rather than after the commands before it have run."""
    sent = [
        body
        for command in commands(page)
        for body in re.findall(r"(?:post \S+|-d) '(\{.*?\})'(?=\s|$)", command.text, re.DOTALL)
        if "'" not in body  # whose value the shell puts together
    ]
    assert sent
    for body in sent:
        json.loads(body)


SHOWN = '{"task":{"id":"6227e5ae-…",…"status":{"state":"DONE",…},"text":"All is …"}}'


def test_a_shortened_word_stands_for_what_came() -> None:
    known: dict[str, str] = {}
    came = '{"task":{"id":"aa-1", "x":1, "status":{"state":"DONE", "y":2}, "text":"All is well"}}'
    assert difference(SHOWN, came, known) is None
    assert with_known("get 6227e5ae-…", known) == "get aa-1"
    assert difference(SHOWN, came.replace("aa-1", "aa-2"), known) is not None


@pytest.mark.parametrize(
    "came",
    [
        '{"task":{"id":"aa-1","x":1,"status":{"state":"FAILED","y":2},"text":"All is well"}}',
        '{"task":{"id":"aa-1","x":1,"status":{"state":"DONE","y":2}}}',
        '{"task":{"id":"aa-1","x":1,"status":{"state":"DONE","y":2},"text":"All is 1"},"z":1}',
        "",
    ],
)
def test_another_result_than_the_shown_one_is_noticed(came: str) -> None:
    assert difference(SHOWN, came, {}) is not None
