"""What it means when OpenCode does not have what a request names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..domain.ports import SessionGone
from ..errors import UpstreamHttpError, UpstreamUnreachable


@contextmanager
def gone_if_unknown() -> Iterator[None]:
    try:
        yield
    except UpstreamHttpError as exc:
        if names_nothing(exc):
            raise SessionGone from exc
        raise


def raise_unless_absent(exc: UpstreamHttpError) -> None:
    """Raise, unless OpenCode says that it has no such thing.

    After the 404 of a proxy nothing is known: a prompt is not sent twice for it, and a decision is
    delivered again.
    """
    if names_nothing(exc):
        return
    if exc.facts["upstream_status"] == 404:
        raise UpstreamUnreachable("Something else than OpenCode has answered.") from exc
    raise exc


def names_nothing(exc: UpstreamHttpError) -> bool:
    """Whether OpenCode says that it has no such session, message or request.

    The 404 of a proxy, or of a version without the route, does not have such a name:
    NotFoundError, PermissionNotFoundError, QuestionNotFoundError.
    """
    name = exc.facts["name"]
    is_opencodes = isinstance(name, str) and name.endswith("NotFoundError")
    return exc.facts["upstream_status"] == 404 and is_opencodes


@contextmanager
def ignoring_absence() -> Iterator[None]:
    try:
        yield
    except UpstreamHttpError as exc:
        raise_unless_absent(exc)
