"""For tests in which requests carry no options."""

from __future__ import annotations

import uuid

from opencode_a2a.domain.values import Caller, RequestOptions, Selection


class NoOptions:
    """Implements `service.options.OptionsResolver`."""

    async def context_for(
        self, caller: Caller, *, named: str | None, options: RequestOptions
    ) -> str:
        return named or str(uuid.uuid4())

    async def resolve(
        self, caller: Caller, context_id: str, *, title: str, options: RequestOptions
    ) -> Selection:
        assert options == RequestOptions()
        return Selection()

    async def resolve_next(
        self, caller: Caller, context_id: str, *, options: RequestOptions
    ) -> Selection:
        return await self.resolve(caller, context_id, title="", options=options)
