"""Run the tests as CI does: `make test`, `make quick`.

    python scripts/suite.py [--quick] [arguments for pytest]

The quick part needs neither OpenCode nor a running service; its coverage is measured. The other
part drives real processes, and on a busy machine one of those can be too slow for a test. So what
fails there is run once more, alone. A test that passes then is printed as flaky and does not fail
the run. A test of the quick part gets no second chance: it has nothing that could be slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
PASSED, FAILED, NOTHING_SELECTED = 0, 1, 5  # exit codes of pytest
MOST_RERUN = 10  # more failures than this are no accident
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
PARALLEL = ["-n", str(CORES), "--dist", "worksteal"]
COVERAGE = ["--cov=opencode_a2a", "--cov-branch", "--cov-report="]


def main(arguments: list[str]) -> int:
    quick_only = "--quick" in arguments
    arguments = [argument for argument in arguments if argument != "--quick"]
    measured = [] if quick_only else COVERAGE
    codes = [pytest("quick", *PARALLEL, *measured, *arguments)]
    flaky: list[str] = []
    if not quick_only:
        code, flaky = run_processes(arguments)
        codes.append(code)
        if codes[0] in (PASSED, FAILED):
            print_coverage()
    if flaky:
        print(f"\nFLAKY: {len(flaky)} failed beside other tests and passed alone:")
        print("".join(f"  {name}\n" for name in flaky), flush=True)
    # A part of which nothing was selected is fine only where the caller has selected.
    fine = {PASSED, NOTHING_SELECTED} if arguments and PASSED in codes else {PASSED}
    return next((code for code in codes if code not in fine), PASSED)


def run_processes(arguments: list[str]) -> tuple[int, list[str]]:
    """The tests that drive real processes; those that fail get one more try, alone.

    Returns the exit code, and the tests that have passed only then.
    """
    LAST_FAILED.unlink(missing_ok=True)  # from here on it holds tests of this part only
    code = pytest("processes", *PARALLEL, *arguments)
    failed = failed_tests()
    are_tests = all("::" in name for name in failed)  # a file: it could not be imported
    if code != FAILED or not 0 < len(failed) <= MOST_RERUN or not are_tests:
        return code, []
    print(f"\nOnce more, alone: {len(failed)} of the tests that drive real processes.", flush=True)
    code = pytest("processes", "-n", "0", *sorted(failed))
    if code not in (PASSED, FAILED):
        return FAILED, []
    return code, sorted(failed - failed_tests())


def failed_tests() -> set[str]:
    return set(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else set()


def pytest(part: str, *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "--part", part, *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return FAILED if code < 0 else code  # a signal has ended it


def print_coverage() -> None:
    """How much of the code the quick part has run, branches included."""
    report = [sys.executable, "-m", "coverage", "report", "--format=total"]
    for name, where in (("all of src", "*"), ("domain", "*/domain/*")):
        command = [*report, f"--include={where}"]
        total = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        print(f"coverage of {name} by the quick part: {total.stdout.strip()} %")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
