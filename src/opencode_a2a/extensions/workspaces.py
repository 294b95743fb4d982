"""OpenCode's projects, workspaces and worktrees.

OpenCode calls the routes behind workspaces and worktrees experimental.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ..contract.declare import Extension, Toggle
from ..contract.params import Directory, Params, Result, WorkspaceId
from ..domain import release
from ..domain.catalog import Location, Project, Workspace, Worktree
from ..domain.isolation import ContextWorktree, FinishAction, Finished, FinishOptions
from ..domain.scopes import Scope
from ..domain.values import Caller
from ..errors import (
    InvalidParams,
    IsolationFailed,
    MergeRefused,
    WorktreeBusy,
    WorkWouldBeLost,
)
from .audit import audited
from .services import Services
from .shapes import Acknowledgement, LocationParams, Name

MUTATIONS = Toggle(
    "A2A_ENABLE_WORKSPACE_MUTATIONS", "it creates and deletes directories on the OpenCode host."
)

WORKSPACES = Extension(
    "opencode-workspace-control-v1",
    title="OpenCode Workspace Control v1",
    description="OpenCode's projects, workspaces and worktrees.",
    scope="opencode",
    extended={
        "routing": "metadata.opencode.workspace.id counts more than metadata.opencode.directory, "
        "which must be inside the workspace root or in a worktree that the caller sees",
        "ownership": "a caller sees and removes the workspaces and worktrees it made, and those "
        "nobody owns when A2A_SHARED_SESSIONS is true",
    },
)

_read = partial(WORKSPACES.method, scope=Scope.SESSIONS_READ, effect="read")
_mutation = partial(
    WORKSPACES.method, scope=Scope.WORKSPACES_WRITE, toggle=MUTATIONS, effect="mutation"
)
CommitMessage = Annotated[str, Field(min_length=1, max_length=10_000)]
Branch = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]


class Projects(Result):
    items: list[Project]


class ProjectResult(Result):
    item: Project


@_read("opencode.projects.list", upstream_stability="stable")
async def list_projects(services: Services, caller: Caller, params: LocationParams) -> Projects:
    """The project of the workspace, and those inside it."""
    current = await services.catalog.project(await params.location(services, caller))
    root = services.locations.root
    inside = [p for p in await services.catalog.projects() if Path(p.worktree).is_relative_to(root)]
    return Projects(items=[current, *(p for p in inside if p.project_id != current.project_id)])


@_read("opencode.projects.current", upstream_stability="stable")
async def current_project(
    services: Services, caller: Caller, params: LocationParams
) -> ProjectResult:
    """The project a directory belongs to."""
    return ProjectResult(
        item=await services.catalog.project(await params.location(services, caller))
    )


class Workspaces(Result):
    items: list[Workspace]


class WorkspaceResult(Result):
    item: Workspace


@_read("opencode.workspaces.list", needs=release.WORKSPACES, upstream_stability="experimental")
async def list_workspaces(services: Services, caller: Caller, params: LocationParams) -> Workspaces:
    """OpenCode's workspaces for the project."""
    location = await params.location(services, caller)
    return Workspaces(items=await services.locations.workspaces(caller, location))


class NewWorkspace(Params):
    type: Name
    branch: Branch | None = None


class CreateWorkspace(LocationParams):
    request: NewWorkspace


@_mutation(
    "opencode.workspaces.create", needs=release.WORKSPACES, upstream_stability="experimental"
)
async def create_workspace(
    services: Services, caller: Caller, params: CreateWorkspace
) -> WorkspaceResult:
    """Make a workspace, with its files in place.

    OpenCode must have them switched on: OPENCODE_EXPERIMENTAL_WORKSPACES=1 in its environment.
    """
    location = await params.location(services, caller)
    types = await services.catalog.workspace_types(location)
    if params.request.type not in types:
        raise InvalidParams.at("request.type", f"must be one of {', '.join(types)}")
    with _audited(caller, action="create workspace", target=params.request.type):
        made = await services.creator.create_workspace(
            caller, location, type=params.request.type, branch=params.request.branch
        )
    return WorkspaceResult(item=made)


class RemoveWorkspace(LocationParams):
    workspace_id: WorkspaceId


@_mutation(
    "opencode.workspaces.remove", needs=release.WORKSPACES, upstream_stability="experimental"
)
async def remove_workspace(
    services: Services, caller: Caller, params: RemoveWorkspace
) -> Acknowledgement:
    """Delete a workspace and its directory."""
    location = await params.location(services, caller)
    found = await services.locations.workspace(
        caller, location, workspace_id=params.workspace_id, field="workspace_id"
    )
    with _audited(caller, action="remove workspace", target=found.workspace_id):
        await services.creator.remove_workspace(location, found.workspace_id)
    return Acknowledgement()


class Worktrees(Result):
    items: list[Worktree]


class WorktreeResult(Result):
    item: Worktree


@_read("opencode.worktrees.list", upstream_stability="experimental")
async def list_worktrees(services: Services, caller: Caller, params: LocationParams) -> Worktrees:
    """The project's worktrees that OpenCode knows, and those of the caller's isolated contexts."""
    found = await services.locations.worktrees(caller, await params.location(services, caller))
    isolated = await services.worktrees.owned_by(caller)
    return Worktrees(items=[_listed(directory, isolated.get(directory)) for directory in found])


def _listed(directory: str, isolated: ContextWorktree | None) -> Worktree:
    name = Path(directory).name
    if isolated is None:
        return Worktree(directory, name)
    ref = isolated.ref
    return Worktree(
        directory,
        name,
        branch=ref.branch,
        base=ref.base,
        base_branch=ref.base_branch,
        context_id=isolated.context_id,
    )


class NewWorktree(Params):
    name: Branch | None = Field(
        default=None, description="OpenCode may add to it; else it is a2a-…"
    )


class CreateWorktree(LocationParams):
    request: NewWorktree = NewWorktree()


@_mutation("opencode.worktrees.create", upstream_stability="experimental")
async def create_worktree(
    services: Services, caller: Caller, params: CreateWorktree
) -> WorktreeResult:
    """Make a worktree with a branch of its own, and with its files in place."""
    location = await params.location(services, caller)
    with _audited(caller, action="create worktree", target=params.request.name):
        made = await services.creator.create_worktree(caller, location, name=params.request.name)
    return WorktreeResult(item=made)


class WorktreeRequest(Params):
    directory: Directory


class ExistingWorktree(LocationParams):
    request: WorktreeRequest

    async def listed(self, services: Services, caller: Caller) -> tuple[Location, str]:
        """The worktree as OpenCode lists it: OpenCode would delete any directory that we name."""
        location = await self.location(services, caller)
        worktree = await services.locations.worktree(
            caller, location, directory=self.request.directory, field="request.directory"
        )
        return location, worktree


@_mutation("opencode.worktrees.remove", upstream_stability="experimental")
async def remove_worktree(
    services: Services, caller: Caller, params: ExistingWorktree
) -> Acknowledgement:
    """Delete a worktree and its branch; it must be one that OpenCode lists."""
    location, worktree = await params.listed(services, caller)
    with _audited(caller, action="remove worktree", target=worktree):
        await services.creator.remove_worktree(location, worktree)
    return Acknowledgement()


@_mutation(
    "opencode.worktrees.reset", needs=release.WORKTREE_RESET, upstream_stability="experimental"
)
async def reset_worktree(
    services: Services, caller: Caller, params: ExistingWorktree
) -> Acknowledgement:
    """Bring a worktree back to the default branch, losing what was changed."""
    location, worktree = await params.listed(services, caller)
    with _audited(caller, action="reset worktree", target=worktree):
        await services.catalog.reset_worktree(location, worktree)
    return Acknowledgement()


class FinishRequest(Params):
    directory: Directory
    action: FinishAction = Field(
        description="`keep` the branch, `merge` it into the branch it was made from, or `drop` it"
    )
    remove: bool | None = Field(
        default=None,
        description="Remove the worktree: merge does unless this is false, keep does if it is true",
    )
    discard: bool = Field(
        default=False, description="With drop: also what is not committed or not merged"
    )
    message: CommitMessage | None = Field(
        default=None, description="For the commits that are made; else the first words of the task"
    )

    @model_validator(mode="after")
    def _no_contradiction(self) -> FinishRequest:
        if self.action == "drop" and self.remove is False:
            raise ValueError("`drop` removes the worktree; `remove: false` contradicts that")
        if self.action != "drop" and self.discard:
            raise ValueError("`discard` is for `drop`; `keep` and `merge` lose nothing")
        return self

    @property
    def options(self) -> FinishOptions:
        remove = self.action != "keep" if self.remove is None else self.remove
        return FinishOptions(self.action, remove=remove, discard=self.discard, message=self.message)


class FinishWorktree(Params):
    request: FinishRequest


class FinishResult(Result):
    item: Finished


@WORKSPACES.method(
    "opencode.worktrees.finish",
    scope=Scope.WORKSPACES_WRITE,
    errors=(IsolationFailed, WorktreeBusy, MergeRefused, WorkWouldBeLost),
    effect="mutation",
)
async def finish_worktree(
    services: Services, caller: Caller, params: FinishWorktree
) -> FinishResult:
    """Keep, merge or drop the branch of an isolated context.

    What the agent has not committed is committed on the branch first, unless it is dropped.
    """
    request = params.request
    with _audited(caller, action=f"{request.action} worktree", target=request.directory):
        item = await services.worktrees.finish(caller, request.directory, request.options)
    return FinishResult(item=item)


def _audited(caller: Caller, *, action: str, target: str | None) -> AbstractContextManager[None]:
    return audited("audit.workspace", principal=caller.principal, action=action, target=target)
