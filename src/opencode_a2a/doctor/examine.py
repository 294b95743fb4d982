"""Makes checks at the same time, each for as long as it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .verdict import Examination, Level, NotTried, Verdict

ORDER = tuple(Level)


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one check."""

    check: str
    verdict: Verdict
    seconds: float


async def examine(
    examinations: Sequence[Examination], on_report: Callable[[Report], None] = lambda _: None
) -> list[Report]:
    """All reports, in the order of the checks; each is also handed over as soon as it is there."""

    async def make(examination: Examination) -> Report:
        clock = asyncio.get_running_loop().time
        began = clock()
        verdict = await _verdict(examination)
        report = Report(examination.name, verdict, round(clock() - began, 3))
        on_report(report)
        return report

    return await asyncio.gather(*map(make, examinations))


async def _verdict(examination: Examination) -> Verdict:
    try:
        async with asyncio.timeout(examination.seconds):
            return await examination.look()
    except NotTried as exc:
        return Verdict(Level.UNKNOWN, str(exc), exc.fix)
    except TimeoutError:
        return Verdict(Level.UNKNOWN, f"There was no result within {examination.seconds:g} s.")
    except Exception as exc:  # one broken check must not hide what the others found
        return Verdict(Level.UNKNOWN, f"The check itself failed ({type(exc).__name__}: {exc}).")


def worst(reports: Iterable[Report]) -> Level:
    return max((each.verdict.level for each in reports), key=ORDER.index, default=Level.OK)
