"""What the service costs, against OpenCode called directly, a bare SSE server and the SDK's server.

Without --only everything, in about a quarter of an hour. --quick takes half of that and repeats
less, so its figures are rough. --keep lets several runs share the work: each adds what it has
measured, and --write writes all that is kept.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import uvloop

from tests.running import ROOT

from . import calling, fleet, latency, observing, process, smoke, stored, streaming, wire
from .figures import Result
from .lab import Lab
from .report import table, write

MEASURES: dict[str, Callable[[Lab], Awaitable[Result]]] = {
    "length": streaming.by_length,
    "streams": streaming.by_streams,
    "readers": streaming.by_readers,
    "share": latency.share,
    "first": latency.first_token,
    "unary": latency.unary,
    "call": calling.first_word,
    "stored": stored.by_size,
    "growth": stored.growth,
    "memory": process.memory,
    "start": process.start,
    "wire": wire.by_content,
    "observe": observing.cost,
    "fleet": fleet.messages_a_second,
}


async def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    only = f"these measures only: {', '.join(MEASURES)}"
    parser.add_argument("--only", nargs="+", choices=MEASURES, metavar="NAME", help=only)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, smaller counts")
    smoke_help = "only whether a cost grows with what it must not grow with; the exit code says so"
    parser.add_argument("--smoke", action="store_true", help=smoke_help)
    write_help = "write performance.md and its plots there"
    parser.add_argument("--write", type=Path, metavar="FOLDER", help=write_help)
    keep_help = "keep results there, beside those of earlier runs"
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help=keep_help)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        lab = Lab(Path(folder), 2, 0.2) if arguments.quick else Lab(Path(folder))
        if arguments.smoke:
            problems = await smoke.run(lab)
            print("\n".join(problems) or "no cost grows with what it must not grow with")
            return 1 if problems else 0
        names = arguments.only or list(MEASURES)
        for number, name in enumerate(names, 1):
            print(f"{number}/{len(names)} {name} …", end=" ", file=sys.stderr, flush=True)
            since = perf_counter()
            result = await MEASURES[name](lab)
            seconds = perf_counter() - since
            result.measured = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, in {seconds:.0f} s"
            results.append(result)
            if arguments.keep is not None:
                _kept_at(arguments.keep, name).write_bytes(pickle.dumps(result))
            print(f"{seconds:.0f} s", file=sys.stderr, flush=True)
    print(table(results))
    if arguments.write is not None:
        if arguments.keep is not None:
            results = _kept(arguments.keep)
        packages = json.loads((ROOT / "package.json").read_text())["dependencies"]
        path = write(results, arguments.write, f"OpenCode {packages['opencode-ai']}")
        print(f"\nwritten to {path}")
    return 0


def _kept_at(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.pickle"


def _kept(folder: Path) -> list[Result]:
    """What all runs have kept, in the order of the page."""
    files = [_kept_at(folder, name) for name in MEASURES]
    return [pickle.loads(file.read_bytes()) for file in files if file.exists()]


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
