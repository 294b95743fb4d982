"""Parameters and results that several extensions share."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, PlainSerializer

from ..contract.params import Directory, Params, Result, WorkspaceId
from ..domain.catalog import Location
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


class LocationParams(Params):
    """A request that can be about another directory, or a workspace."""

    metadata: Routing = Routing()

    @property
    def routing(self) -> Routing.OpenCode:
        return self.metadata.opencode or Routing.OpenCode()

    async def location(
        self, services: Services, caller: Caller, *, directory: str | None = None
    ) -> Location:
        """The location that the request names; `directory` is a parameter of its own."""
        routing = self.routing
        workspace = routing.workspace.id if routing.workspace else None
        find = partial(services.locations.find, caller, workspace=workspace)
        if directory is not None:
            return await find(directory=directory, field="directory")
        return await find(directory=routing.directory)


class ModelName(Params):
    providerID: Name
    modelID: Name

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.providerID, self.modelID)


class Acknowledgement(Result):
    ok: Literal[True] = True
