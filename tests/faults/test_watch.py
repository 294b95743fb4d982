"""Watching all tasks while the service is killed, and on a store that two processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.api.forms import RPC_1, Json, line_to
from tests.postgres import Postgres
from tests.running import Upstream, service
from tests.watching import Page


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    if request.param == "sqlite":
        yield {}
        return
    server: Postgres = request.getfixturevalue("postgres")
    server.emptied()
    yield {"A2A_TASK_STORE_DATABASE_URL": server.url()}


def answer(task: Json) -> str:
    return "".join(part["text"] for artifact in task["artifacts"] for part in artifact["parts"])


def test_a_page_goes_on_after_the_service_was_killed(
    breakable: Upstream, tmp_path: Path, store: dict[str, str]
) -> None:
    page, follow = Page(RPC_1), {"contexts": ["followed"]}
    with (
        service(breakable, tmp_path, **store) as running,
        line_to(running) as client,
        page.watching(client, follow=follow) as results,
    ):
        while not page.is_ready:
            next(results)
        long = RPC_1.send(client, "[[tokens:900]] [[rate:300]]", wait=False, contextId="followed")
        asked = RPC_1.send(client, "[[permission]]")
        while len(page.texts.get(long["id"], {})) == 0:
            next(results)
        before = page.text(long["id"])
        running.program.kill()
        with suppress(httpx.TransportError):
            for _ in results:
                pass
    with service(breakable, tmp_path, **store) as restarted, line_to(restarted) as client:
        page.is_ready = False
        done = RPC_1.state("completed")

        def arrived() -> bool:
            return page.is_ready and long["id"] in page.ended and page.state(long["id"]) == done

        page.until(client, arrived, follow=follow)
        assert page.text(long["id"]) == answer(RPC_1.get(client, long["id"]))
        assert page.text(long["id"]).startswith(before)
        assert page.state(asked["id"]) == RPC_1.state("input-required")
        assert page.summaries[asked["id"]]["metadata"]["shared"]["interrupt"]["request_id"]


def test_what_another_process_does_is_seen_here(
    breakable: Upstream, tmp_path: Path, postgres: Postgres
) -> None:
    store = {"A2A_TASK_STORE_DATABASE_URL": postgres.without_tasks()}
    with (
        service(breakable, tmp_path, **store) as first,
        service(breakable, tmp_path, **store) as second,
        line_to(first) as here,
        line_to(second) as there,
    ):
        page = Page(RPC_1)
        with page.watching(there, follow={"contexts": ["followed"]}) as results:
            while not page.is_ready:
                next(results)
            slow = RPC_1.send(here, "[[tokens:300]] [[rate:150]]", wait=False, contextId="followed")
            quick = RPC_1.send(here, "hello")
            asked = RPC_1.send(here, "[[permission]]")
            waiting, done = RPC_1.state("input-required"), RPC_1.state("completed")
            while not (
                page.state(asked["id"]) == waiting
                and page.state(quick["id"]) == page.state(slow["id"]) == done
                and slow["id"] in page.ended
            ):
                next(results)
        assert page.text(slow["id"]) == answer(RPC_1.get(here, slow["id"]))
        summary, whole = page.summaries[quick["id"]], RPC_1.get(here, quick["id"])
        for member in ("id", "contextId", "status", "metadata"):
            assert summary[member] == whole[member]
