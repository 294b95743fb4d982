"""Try what is declared, and write what was found into `results.json` and `docs/compatibility.md`.

    python -m tests.interop [clients] [opencode] [--only NAME …]

Without a part both are tried. `--only` names clients or versions of OpenCode; the rows of all
others stay as they were.
"""

from __future__ import annotations

import argparse
import sys

from . import clients_run, opencode_run, report
from .declared import CLIENTS, OPENCODE_VERSIONS

PARTS = ("clients", "opencode")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make interop", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" or ".join(PARTS))
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    arguments = parser.parse_args()
    known = {client.name for client in CLIENTS} | set(OPENCODE_VERSIONS)
    if wrong := {*arguments.parts} - {*PARTS} | {*arguments.only} - known:
        parser.error(f"{', '.join(sorted(wrong))}: there are {', '.join((*PARTS, *sorted(known)))}")
    parts = arguments.parts or PARTS
    chosen = arguments.only or known
    if "clients" in parts and (clients := [c for c in CLIENTS if c.name in chosen]):
        report.keep("clients", clients_run.run(clients))
    if "opencode" in parts and (versions := [v for v in OPENCODE_VERSIONS if v in chosen]):
        report.keep("opencode", opencode_run.run(versions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
