"""What `call` keeps between calls: cards, and the messages of chats."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from a2a.types.a2a_pb2 import AgentCard

from opencode_a2a.cli import cards, history
from opencode_a2a.cli.cards import CardFiles
from opencode_a2a.cli.history import history_of
from opencode_a2a.outbound.card import FoundCard, read_card
from opencode_a2a.outbound.target import Target

RAW = b'{"name": "It", "supportedInterfaces": [{"url": "http://x", "protocolBinding": "JSONRPC"}]}'
TARGET = Target("https://agent.example.com")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def found(etag: str | None = '"1"') -> FoundCard:
    raw, card = read_card(RAW, where="here")
    return FoundCard("https://agent.example.com/card.json", raw, card, etag)


def only_file(folder: Path) -> Path:
    (file,) = folder.rglob("*.json*")
    for each in (file, file.parent, file.parent.parent):
        assert not stat.S_IMODE(each.stat().st_mode) & 0o077
    return file


def test_a_card_is_kept_for_this_user_alone(home: Path) -> None:
    assert CardFiles().get(TARGET) is None
    CardFiles().put(TARGET, found())
    assert CardFiles().get(TARGET) == found()
    assert CardFiles().get(Target("https://other.example.com")) is None
    only_file(home / "cache")


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b'{"url": 1}', b'{"card": []}', b"1" * 300_000]
)
def test_a_broken_file_is_no_card(home: Path, content: bytes) -> None:
    CardFiles().put(TARGET, found())
    only_file(home / "cache").write_bytes(content)
    assert CardFiles().get(TARGET) is None


def test_a_card_that_cannot_be_asked_for_again_is_not_kept(home: Path) -> None:
    CardFiles().put(TARGET, found(etag=None))
    CardFiles().put(TARGET, FoundCard("https://x", {"x": "y" * 300_000}, AgentCard(), '"1"'))
    assert not (home / "cache").exists()


def test_cards_do_not_pile_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "MAX_CARDS", 3)
    for number in range(5):
        CardFiles().put(Target(f"https://{number}.example.com"), found())
        for file in (home / "cache").rglob("*.json"):
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 10))
    left = [n for n in range(5) if CardFiles().get(Target(f"https://{n}.example.com"))]
    assert left == [2, 3, 4]


def test_messages_of_a_chat_are_kept_for_each_peer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_MESSAGES", 3)
    kept = history_of("http://localhost:8000")
    for message in ("one", "two\nlines", "x" * 20_000, "three", "four"):
        kept.store_string(message)
    with only_file(home / "state").open("a") as file:
        file.write("not JSON\n{}\n")
    for _ in range(2):
        messages = list(history_of("http://localhost:8000").load_history_strings())
        assert messages == ["four", "three", "two\nlines"]
    assert len(only_file(home / "state").read_text().splitlines()) == 3
    assert list(history_of("http://localhost:8001").load_history_strings()) == []
