"""Run a program with the credentials that systemd hands over as environment variables.

    python -I -m opencode_a2a.deploy.launch PROGRAM ARGUMENT...

OpenCode reads its password and the keys of model providers from its environment. In a unit they
would be seen by everybody who may ask systemd. Files in CREDENTIALS_DIRECTORY are for the unit
alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def with_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with each credential under the name of its file."""
    result = {k: v for k, v in environment.items() if k != "CREDENTIALS_DIRECTORY"}
    if folder := environment.get("CREDENTIALS_DIRECTORY"):
        for file in sorted(Path(folder).iterdir()):
            if not file.is_file():  # Kubernetes has a directory beside the files
                continue
            result[file.name] = file.read_text(encoding="utf-8").rstrip("\r\n")
    return result


if __name__ == "__main__":
    os.execve(sys.argv[1], sys.argv[1:], with_credentials(os.environ))
