"""Which tests that drive processes one worker runs together, and with which the run begins.

A worker starts for itself whatever the tests of a session or module share: an OpenCode with its
first prompt takes five seconds of CPU time, a service one. So tests that share something stay
together, and what takes longest comes first, lest everybody waits for it at the end.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

ASKING = "tests/e2e, on the OpenCode that asks"
ASKING_FILES = {f"tests/e2e/test_{name}.py" for name in ("decisions", "interrupts", "rich_client")}
# These take so long that an OpenCode of their own is worth its while, or have some anyway.
BY_THEMSELVES = tuple(
    f"tests/e2e/test_{name}.py" for name in ("any_client", "pages", "peer_calls", "isolation")
)
# The files in these folders share an OpenCode, or a PostgreSQL server.
TOGETHER = ("tests/console", "tests/e2e", "tests/extensions", "tests/store")
# The tests in these share nothing that takes long to start.
APART = ("tests/chaos/", "tests/cli/test_up.py", "tests/opencode/test_process.py")
BEGIN_WITH = (
    "tests/console",
    "tests/extensions",
    "tests/e2e",
    *BY_THEMSELVES,
    ASKING,
    "tests/chaos/",
)


def unit_of(test: str) -> str:
    """The unit that a test belongs to, by its id."""
    file = test.partition("::")[0]
    if file in BY_THEMSELVES:
        return file
    if file in ASKING_FILES:
        return ASKING
    if file.startswith(APART):
        return test
    folder = file.rpartition("/")[0]
    return folder if folder in TOGETHER else file


def place_of(test: str) -> int:
    """Where a test is in the order in which units are begun."""
    unit = unit_of(test)
    for number, name in enumerate(BEGIN_WITH):
        if unit == name or (name.endswith("/") and unit.startswith(name)):
            return number
    return len(BEGIN_WITH)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """A worker that has nothing left to do gets the next unit."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
