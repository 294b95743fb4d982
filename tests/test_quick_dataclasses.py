"""The frozen dataclasses that the program makes are like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import pytest

from opencode_a2a import quick_dataclasses

Decorator = Callable[..., Any]
STANDARD = dataclasses.dataclass


@pytest.fixture
def quick() -> Iterator[Decorator]:
    quick_dataclasses.install()
    try:
        yield dataclasses.dataclass
    finally:
        dataclasses.dataclass = STANDARD


def classes(dataclass: Decorator) -> tuple[Any, ...]:
    """The same three, made by a decorator."""

    @dataclass(frozen=True, slots=True)
    class Point:
        __module__ = quick_dataclasses.PACKAGE
        x: int
        y: int = 2
        notes: list[str] = field(default_factory=list, compare=False, repr=False)
        seen: dict[str, int] = field(default_factory=dict, hash=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named(Point):
        __module__ = quick_dataclasses.PACKAGE
        name: str = ""

        def __repr__(self) -> str:
            return f"<{self.name}>"

    @dataclass(frozen=True, slots=True)
    class Nothing:
        """It has no fields."""

        __module__ = quick_dataclasses.PACKAGE

    return Point, Named, Nothing


VALUES: list[dict[str, Any]] = [
    {"x": 1},
    {"x": 1, "y": 3},
    {"x": 1, "notes": ["a"]},
    {"x": 1, "seen": {"a": 1}},
    {"x": 2},
]


@pytest.mark.parametrize(("which", "values"), [(0, VALUES), (1, VALUES), (2, [{}])])
def test_values_are_compared_hashed_and_shown_as_those_of_the_standard_library(
    quick: Decorator, which: int, values: list[dict[str, Any]]
) -> None:
    theirs, ours = classes(STANDARD)[which], classes(quick)[which]
    assert not ours.__dataclass_params__.frozen
    for one in values:
        assert repr(ours(**one)) == repr(theirs(**one))
        assert ours(**one) != theirs(**one)
        assert copy.deepcopy(ours(**one)) == dataclasses.replace(ours(**one)) == ours(**one)
        for other in values:
            ours_equal = ours(**one) == ours(**other)
            assert ours_equal == (theirs(**one) == theirs(**other))
            if ours_equal:
                assert hash(ours(**one)) == hash(ours(**other))
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__slots__ == theirs.__slots__


def test_a_dataclass_that_is_not_frozen_or_of_another_package_is_the_standard_one(
    quick: Decorator,
) -> None:
    @quick(frozen=True)
    class Other:
        x: int = 0

    @quick
    class Changeable:
        __module__ = quick_dataclasses.PACKAGE
        x: int = 0

    with pytest.raises(dataclasses.FrozenInstanceError):
        Other().x = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changeable())


@pytest.mark.parametrize(("before", "frozen"), [("", "True"), ("load_faster()", "False")])
def test_the_program_makes_them_and_nobody_else(before: str, frozen: str) -> None:
    code = (
        f"from opencode_a2a.__main__ import load_faster; {before}\n"
        "from opencode_a2a.domain.values import Usage\n"
        "print(Usage.__dataclass_params__.frozen)"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout.split() == [frozen]


def test_the_program_publishes_the_same_document_as_the_package() -> None:
    """Schemas follow from dataclasses, too."""
    code = (
        "import sys; from opencode_a2a import __main__ as program, cli\n"
        "sys.argv = ['opencode-a2a', 'openapi']; {}"
    )
    documents = {
        subprocess.run(
            [sys.executable, "-c", code.format(run)], check=True, capture_output=True
        ).stdout
        for run in ("program.main()", "cli.main()")
    }
    assert len(documents) == 1
    assert b'"openapi"' in documents.pop()
