"""What the service costs, against OpenCode called directly, a bare SSE server and the SDK's server.

Without --only everything, in about a quarter of an hour. --quick takes half of that and repeats
less, so its figures are rough.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
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
    arguments = parser.parse_args()
    began, results = perf_counter(), []
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
            results.append(await MEASURES[name](lab))
            print(f"{perf_counter() - since:.0f} s", file=sys.stderr, flush=True)
    print(table(results))
    if arguments.write is not None:
        packages = json.loads((ROOT / "package.json").read_text())["dependencies"]
        minutes = (perf_counter() - began) / 60
        path = write(results, arguments.write, f"OpenCode {packages['opencode-ai']}", minutes)
        print(f"\nwritten to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
