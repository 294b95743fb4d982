"""What must be looked up before OpenCode is asked.

It answers 500 where a name is unknown, keeps a model that does not exist, and runs the shell
commands and reads the files it finds in arguments. Each check names the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..domain import commands
from ..domain.catalog import Catalog, Place, SessionInfo
from ..domain.values import Message, ModelRef
from ..errors import InvalidParams, UpstreamBusy


@dataclass(frozen=True, slots=True)
class Checks:
    catalog: Catalog

    async def idle(self, session: SessionInfo) -> None:
        """OpenCode would merge a second prompt into the run that is under way."""
        status = (await self.catalog.statuses(Place(session.directory))).get(session.id)
        if status is not None and status.type != "idle":
            raise UpstreamBusy(
                "The session is at work. Try again when it is idle.",
                retry_after=5,
                session_id=session.id,
            )

    async def agent(self, at: SessionInfo | Place, name: str | None, field: str) -> ModelRef | None:
        """The model that the agent is configured for."""
        if name is None:
            return None
        known = await self.catalog.agents(Place(at.directory))
        _one_of(name, list(known), "agent", field)
        return known[name]

    async def command(self, session: SessionInfo, name: str, arguments: str, at: str) -> None:
        """Arguments become part of a template that OpenCode then searches for shell and files."""
        known = await self.catalog.commands(Place(session.directory))
        _one_of(name, list(known), "command", f"{at}.command")
        reason = commands.refusal(known[name], arguments)
        if reason is not None:
            raise InvalidParams.at(f"{at}.arguments", reason)

    def mentions_no_file(self, text: str, field: str) -> None:
        """OpenCode reads files that the prompt of a sub-agent refers to; it runs nothing in it."""
        if commands.mentions_file(text):
            raise InvalidParams.at(field, commands.MENTION_REFUSED)

    async def model(self, at: SessionInfo | Place, model: ModelRef | None, field: str) -> None:
        if model is None:
            return
        found = await self.catalog.providers(Place(at.directory))
        if not found.knows(model):
            known = [f"{m.provider_id}/{m.model_id}" for m in found.models if m.connected]
            _one_of(f"{model.provider}/{model.model}", known, "model", field)

    async def answering(
        self, at: SessionInfo | Place, agent: str | None, session_id: str | None
    ) -> ModelRef | None:
        """The model that answers a prompt without one: the agent's, the session's, the default.

        None where OpenCode decides by what its user chose last, which it does not tell.
        """
        place = Place(at.directory)
        agents = await self.catalog.agents(place)
        own = agents.get(agent) if agent is not None else next(iter(agents.values()), None)
        if own is None and session_id is not None:
            own = await self.catalog.model_of(session_id)
        return own or await self.catalog.default_model(place)

    async def variant(
        self, at: SessionInfo | Place, variant: str | None, model: ModelRef | None, field: str
    ) -> None:
        """OpenCode ignores a variant that the model does not have.

        Where it is not known which model answers, any connected one may have the variant.
        """
        if variant is None:
            return
        known = (await self.catalog.providers(Place(at.directory))).variants(model)
        if variant not in known:
            whose = f"the model {model.provider}/{model.model} has" if model else "the models have"
            advice = f"only {', '.join(known)}" if known else "no variants"
            raise InvalidParams.at(field, f"there is no such variant; {whose} {advice}")

    async def message(self, session: SessionInfo, message_id: str, field: str) -> Message:
        found = await self.catalog.message(session.id, message_id)
        if found is None:
            raise InvalidParams.at(field, "there is no such message in this session")
        return found


def _one_of(name: str, known: Sequence[str], noun: str, field: str) -> None:
    if name not in known:
        near = get_close_matches(name, known, 3, 0.4) or list(known[:5])
        advice = f"; there are {', '.join(near)}" if near else ""
        raise InvalidParams.at(field, f"there is no such {noun}{advice}")
