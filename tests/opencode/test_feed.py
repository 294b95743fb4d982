"""Who gets which events of the one stream."""

from __future__ import annotations

from opencode_a2a.domain.events import Busy, Gap, Idle
from opencode_a2a.opencode.feed import Subscription


async def test_what_follows_a_gap_is_looked_at_after_it() -> None:
    with Subscription("s", {}) as events:
        events.put([Busy("s")])
        events.lost()
        events.put([Idle("s")])
        events.lost()
        assert await anext(events) == [Busy("s"), Gap("s")]
        assert await anext(events) == [Idle("s"), Gap("s")]


async def test_a_sub_agent_that_becomes_a_conversation_keeps_its_events() -> None:
    routes: dict[str, Subscription] = {}
    with Subscription("parent", routes) as parent:
        parent.include("child")
        assert routes == {"parent": parent, "child": parent}
        with Subscription("child", routes) as child:
            parent.include("child")
            assert routes["child"] is child
        assert routes == {"parent": parent}
        with Subscription("child", routes) as child:
            parent.__exit__()
            assert routes == {"child": child}
