"""Makes frozen dataclasses without compiling seven methods for each of them.

Python 3.11 does, and we have more than three hundred: a quarter of the CPU time of a start, of
which this saves more than half. Here only `__init__` is compiled; the other methods are closures,
or one function for all. What differs is that attributes can be assigned: the type checker refuses
that, and the tests, which load the package by themselves, have the standard library's classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

PACKAGE = __name__.partition(".")[0]
KNOWN_OPTIONS = {"frozen", "slots", "kw_only"}
_standard = dataclasses.dataclass


def install() -> None:
    """From now on, make the frozen dataclasses of this package so."""
    dataclasses.dataclass = _dataclass


def _dataclass(cls: type | None = None, /, **options: Any) -> Any:
    if cls is not None:
        return _standard(cls, **options)
    return lambda decorated: _made(decorated, options)


def _made(cls: type, options: dict[str, Any]) -> type:
    ours = cls.__module__.startswith(PACKAGE) and options.keys() <= KNOWN_OPTIONS
    if not ours or not options.get("frozen"):
        return _standard(**options)(cls)
    if cls.__doc__ is None:  # else the signature is worked out for it
        cls.__doc__ = f"{cls.__name__}()"  # in this form no schema takes it for a description
    own = {name for name, value in vars(cls).items() if value is not None}
    made: type = _standard(**options | {"frozen": False, "eq": False, "repr": False})(cls)
    fields = dataclasses.fields(made)
    compared = _values_of([each.name for each in fields if each.compare])
    hashed = _values_of(
        [each.name for each in fields if (each.compare if each.hash is None else each.hash)]
    )

    def eq(self: object, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def hash_(self: object) -> int:
        return hash(hashed(self))

    for name, method in (("__eq__", eq), ("__hash__", hash_), ("__repr__", _repr)):
        if name not in own:
            setattr(made, name, method)
    return made


def _values_of(names: list[str]) -> Callable[[Any], Any]:
    return attrgetter(*names) if names else lambda _: ()


def _repr(self: Any) -> str:
    shown = (each.name for each in dataclasses.fields(self) if each.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"
