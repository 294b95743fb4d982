"""Run the checks and tests as CI does: `make test`, `make quick`.

    python scripts/suite.py [--quick] [arguments for pytest]

The quick part needs neither OpenCode nor a running service; its coverage is measured, apart from
the tests whose examples hypothesis draws (tests/conftest.py). The other part drives real processes,
and waits for them as much as it works, so both run at the same time. So does `make check`; if it
fails, a line says so at once, and the end of the run shows why. What rests on OpenCode is then run
once more, on OpenCode 2.
On a busy machine a process can be too slow for a test. So what fails in that part is run once more,
alone. A test that passes then is printed as flaky and does not fail the run. A test of the quick
part gets no second chance: it has nothing that could be slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".pytest_cache" / "processes"
LAST_FAILED = CACHE / "v" / "cache" / "lastfailed"
PASSED, FAILED, NOTHING_SELECTED = 0, 1, 5  # exit codes of pytest
MOST_RERUN = 10  # more failures than this are no accident
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
# How each part is run. Tests that drive processes wait as much as they work, and are distributed
# by tests/units.py; schemathesis, which only they use, takes a second to load.
PARTS = {
    "quick": ["-n", str(CORES), "--dist", "worksteal", "-p", "no:schemathesis"],
    "processes": [
        *("-n", str(CORES + 2), "--dist", "loadscope", "--no-loadscope-reorder"),
        *("-o", f"cache_dir={CACHE}"),
    ],
}
# Without cached bytecode, every one of the hundreds of services that are started would be compiled.
# `make` below would look for the workers of the `make` above.
LEFT_OUT = {"PYTHONDONTWRITEBYTECODE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
# What rests on OpenCode is run on OpenCode 2 as well, where npm has a program of it, in two forms
# that share neither protocol line nor binding. The pages are about OpenCode 2 in any case.
OPENCODE_2 = ROOT / "tests/opencode2/node_modules/@opencode/cli-linux-x64-baseline/bin/opencode"
ENVIRONMENT_2 = {**ENVIRONMENT, "OPENCODE_COMMAND": str(OPENCODE_2)}
ON_OPENCODE_2 = [
    *("tests/e2e", "tests/extensions", "--ignore=tests/e2e/test_pages.py"),
    *("-k", "not javascript and not 1.0-rest and not 0.3-rpc"),
]
COVERAGE = ["--cov=opencode_a2a", "--cov-branch", "--cov-report="]


def main(arguments: list[str]) -> int:
    if "--quick" in arguments:
        # By themselves they leave half of each core idle: many wait for a timer or another thread.
        more = ("-n", str(2 * CORES), *(each for each in arguments if each != "--quick"))
        return pytest("quick", *more)
    with (
        tempfile.TemporaryFile() as check_output,
        tempfile.TemporaryFile() as quick_output,
        ThreadPoolExecutor() as beside,
    ):
        checks = beside.submit(check, output=check_output)
        quick = beside.submit(pytest, "quick", *COVERAGE, *arguments, output=quick_output)
        code, flaky = run_processes(arguments, after=quick)
        codes = [code]
        if not arguments and OPENCODE_2.exists():
            print("\nOn OpenCode 2:", flush=True)
            code_2, flaky_2 = run_processes(ON_OPENCODE_2, after=quick, environment=ENVIRONMENT_2)
            codes.append(code_2)
            flaky += [f"{name} (OpenCode 2)" for name in flaky_2]
        codes.insert(0, quick.result())
        print(f"\nThe quick part:\n{content(quick_output)}", flush=True)
        checked = checks.result()
        if codes[0] in (PASSED, FAILED):
            print_coverage()
        if flaky:
            print(f"\nFLAKY: {len(flaky)} failed beside other tests and passed alone:")
            print("".join(f"  {name}\n" for name in flaky), flush=True)
        print(f"\nmake check:\n{content(check_output)}", flush=True)
    # A part of which nothing was selected is fine only where the caller has selected.
    fine = {PASSED, NOTHING_SELECTED} if arguments and PASSED in codes else {PASSED}
    return next((code for code in (*codes, checked) if code not in fine), PASSED)


def check(output: IO[bytes]) -> int:
    """Lint, formatting, types."""
    command = ["make", "--no-print-directory", "check"]
    ended = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, check=False, stdout=output, stderr=subprocess.STDOUT
    )
    if ended.returncode == 0:
        return PASSED
    print("\nmake check has FAILED; the end of this run shows why.", flush=True)
    return FAILED


def content(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode()


def run_processes(
    arguments: list[str], *, after: Future[int], environment: Mapping[str, str] = ENVIRONMENT
) -> tuple[int, list[str]]:
    """The tests that drive real processes; those that fail get one more try, alone.

    Alone is after the quick part. Returns the exit code, and the tests that have passed only then.
    """
    LAST_FAILED.unlink(missing_ok=True)  # from here on it holds tests of this part only
    code = pytest("processes", *arguments, environment=environment)
    failed = failed_tests()
    are_tests = all("::" in name for name in failed)  # a file: it could not be imported
    if code != FAILED or not 0 < len(failed) <= MOST_RERUN or not are_tests:
        return code, []
    print(f"\nOnce more, alone: {len(failed)} of the tests that drive real processes.", flush=True)
    after.result()
    code = pytest("processes", "-n", "0", *sorted(failed), environment=environment)
    if code not in (PASSED, FAILED):
        return FAILED, []
    return code, sorted(failed - failed_tests())


def failed_tests() -> set[str]:
    return set(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else set()


def pytest(
    part: str,
    *arguments: str,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "--part", part, *PARTS[part], *arguments]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=output).returncode
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
