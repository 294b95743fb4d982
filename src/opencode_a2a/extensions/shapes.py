"""What several extensions have in common: ids, places, moments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, PlainSerializer

from ..contract.params import Directory, Params, Result, WorkspaceId
from ..domain.catalog import Place
from ..domain.values import Caller, ModelRef, timestamp
from .services import Services

Name = Annotated[str, Field(min_length=1, max_length=255)]


Moment = Annotated[
    int,
    PlainSerializer(timestamp, return_type=str),
    Field(json_schema_extra={"format": "date-time"}),
]


class Routing(Params):
    """`metadata` of a request to a method, as far as it says where to look."""

    model_config = ConfigDict(extra="ignore", strict=True)

    class OpenCode(Params):
        model_config = ConfigDict(extra="ignore", strict=True)

        class Workspace(Params):
            id: WorkspaceId

        directory: Directory | None = Field(default=None, description="Look here")
        workspace: Workspace | None = Field(
            default=None, description="Look in this workspace; counts more than a directory"
        )

    opencode: OpenCode | None = None


class Placed(Params):
    """A request that can be about another directory, or a workspace."""

    metadata: Routing = Routing()

    @property
    def asked(self) -> Routing.OpenCode:
        return self.metadata.opencode or Routing.OpenCode()

    async def place(
        self, services: Services, caller: Caller, directory: str | None = None
    ) -> Place:
        asked = self.asked
        workspace = asked.workspace.id if asked.workspace else None
        if directory is not None:
            return await services.places.place(caller, directory, workspace, "directory")
        return await services.places.place(caller, asked.directory, workspace)


class ModelName(Params):
    providerID: Name
    modelID: Name

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.providerID, self.modelID)


class Done(Result):
    ok: Literal[True] = True
