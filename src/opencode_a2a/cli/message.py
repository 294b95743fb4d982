"""What a call sends, from its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..outbound.transcript import Json
from ..outbound.workspace_files import file_part
from .failure import CommandError
from .outcome import USAGE

MAX_FILE_BYTES = 32 * 1024 * 1024  # of all attachments together


def message_parts(text: str, files: Sequence[Path]) -> list[Json]:
    parts: list[Json] = [{"text": text}] if text.strip() else []
    total = 0
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as exc:
            raise CommandError(f"--file {file}: {exc.strerror}", USAGE) from None
        total += len(content)
        if total > MAX_FILE_BYTES:
            raise CommandError(f"--file {file}: more than {MAX_FILE_BYTES} bytes", USAGE)
        parts.append(file_part(file, content))
    return parts


def message_metadata(arguments: argparse.Namespace) -> Json | None:
    """What services of this project read; others ignore it."""
    shared: Json = {}
    if arguments.session:
        shared["session"] = {"id": arguments.session}
    if arguments.model:
        provider, slash, model = arguments.model.partition("/")
        if not (provider and slash and model):
            raise CommandError(f"--model {arguments.model}: must be PROVIDER/MODEL", USAGE)
        shared["model"] = {"providerID": provider, "modelID": model}
    found = {"shared": shared, "opencode": {"agent": arguments.agent} if arguments.agent else {}}
    return {name: value for name, value in found.items() if value} or None
