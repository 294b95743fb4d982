"""Checks what a request names before OpenCode gets it; each failure names the wrong field.

OpenCode answers 500 to an unknown name, stores a model that does not exist, and runs the shell
commands and reads the files that it finds in arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..domain import commands
from ..domain.catalog import HasCatalog, Location, SessionInfo
from ..domain.values import Message, ModelRef
from ..errors import InvalidParams, UpstreamBusy


@dataclass(frozen=True, slots=True)
class Validator:
    connected: HasCatalog

    async def idle(
        self, session: SessionInfo, *, advice: str = "Try again when it is idle."
    ) -> None:
        """Raise `UpstreamBusy` during a run: OpenCode would merge a second prompt into it."""
        status = (await self.connected.catalog.statuses(Location(session.directory))).get(
            session.id
        )
        if status is not None and status.type != "idle":
            raise UpstreamBusy(
                f"The session is at work. {advice}",
                retry_after=5,
                session_id=session.id,
            )

    async def agent(
        self, at: SessionInfo | Location, name: str | None, *, field: str
    ) -> ModelRef | None:
        """The model that the agent is configured for."""
        if name is None:
            return None
        known = {
            a.name: a.model for a in await self.connected.catalog.agents(Location(at.directory))
        }
        _check_name(name, known=list(known), noun="agent", field=field)
        return known[name]

    async def command(self, session: SessionInfo, name: str, *, arguments: str, field: str) -> None:
        """OpenCode fills the arguments into a template, and runs and reads what it finds there."""
        found = await self.connected.catalog.commands(Location(session.directory))
        known = {command.name: command.template for command in found}
        _check_name(name, known=list(known), noun="command", field=f"{field}.command")
        reason = commands.refusal(known[name], arguments)
        if reason is not None:
            raise InvalidParams.at(f"{field}.arguments", reason)

    def subtask_prompt(self, text: str, *, field: str) -> None:
        """OpenCode reads files that the prompt of a sub-agent mentions; it runs nothing in it."""
        if commands.mentions_file(text):
            raise InvalidParams.at(field, commands.MENTION_REFUSED)

    async def model(
        self, at: SessionInfo | Location, model: ModelRef | None, *, field: str
    ) -> None:
        if model is None:
            return
        found = await self.connected.catalog.providers(Location(at.directory))
        if not found.knows(model):
            known = [f"{m.provider_id}/{m.model_id}" for m in found.models if m.connected]
            _check_name(f"{model.provider}/{model.model}", known=known, noun="model", field=field)

    async def answering(
        self, at: SessionInfo | Location, *, agent: str | None, session_id: str | None
    ) -> ModelRef | None:
        """The model that answers a prompt without one: the agent's, the session's, the default.

        None where OpenCode uses what its user chose last, which it does not publish.
        """
        location = Location(at.directory)
        agents = await self.connected.catalog.agents(location)
        model = next((a.model for a in agents if agent in (None, a.name)), None)
        if model is None and session_id is not None:
            model = await self.connected.catalog.model_of(session_id)
        return model or await self.connected.catalog.default_model(location)

    async def variant(
        self,
        at: SessionInfo | Location,
        variant: str | None,
        *,
        model: ModelRef | None,
        field: str,
    ) -> None:
        """OpenCode ignores a variant that the model does not have.

        Without a model, the variant may be that of any connected one.
        """
        if variant is None:
            return
        known = (await self.connected.catalog.providers(Location(at.directory))).variants(model)
        if variant not in known:
            whose = f"the model {model.provider}/{model.model} has" if model else "the models have"
            advice = f"only {', '.join(known)}" if known else "no variants"
            raise InvalidParams.at(field, f"there is no such variant; {whose} {advice}")

    async def message(self, session: SessionInfo, message_id: str, *, field: str) -> Message:
        found = await self.connected.catalog.message(session.id, message_id)
        if found is None:
            raise InvalidParams.at(field, "there is no such message in this session")
        return found


def _check_name(name: str, *, known: Sequence[str], noun: str, field: str) -> None:
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.4) or list(known[:5])
        advice = f"; there are {', '.join(near)}" if near else ""
        raise InvalidParams.at(field, f"there is no such {noun}{advice}")
