"""Try a release: start both of its programs in an empty workspace and ask the demo model something.

python -I -m opencode_a2a.deploy.trial
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from . import check
from .resources import DeployError


def main() -> None:
    programs = Path(sys.executable).parent
    token, port = secrets.token_urlsafe(24), _free_port()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder, "workspace")
        workspace.mkdir()
        environment = {
            "PATH": f"{programs}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "HOME": folder,
            "A2A_BEARER_TOKEN": token,
            "OPENCODE_COMMAND": str(programs / "opencode"),
        }
        command = [str(programs / "opencode-a2a"), "up", "--port", str(port), str(workspace)]
        with subprocess.Popen(command, env=environment) as service:
            try:
                check.wait_until_ready(f"http://127.0.0.1:{port}", f"Bearer {token}")
                check.ask(f"http://127.0.0.1:{port}", f"Bearer {token}")
            except DeployError as exc:
                sys.exit(f"The release does not work here: {exc}")
            finally:
                service.terminate()


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    main()
