"""What several extensions have in common: ids, places, moments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from ..contract.params import Directory, Params, WorkspaceId
from ..domain.catalog import Place
from ..domain.values import ModelRef, timestamp
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

    async def place(self, services: Services, directory: str | None = None) -> Place:
        asked = self.metadata.opencode or Routing.OpenCode()
        workspace = asked.workspace.id if asked.workspace else None
        if directory is not None:
            return await services.access.place(directory, workspace)
        return await services.access.place(
            asked.directory, workspace, "metadata.opencode.directory"
        )


class ModelName(Params):
    providerID: Name
    modelID: Name

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.providerID, self.modelID)


class Done(BaseModel):
    ok: Literal[True] = True
