"""Where OpenCode can work: projects, workspaces, worktrees.

OpenCode calls the routes behind workspaces and worktrees experimental.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..contract.declare import Extension, Toggle
from ..contract.params import Directory, Params, Result, WorkspaceId
from ..domain.catalog import Place, Project, Workspace, Worktree
from ..domain.scopes import Scope
from ..domain.values import Caller
from ..errors import InvalidParams
from .audit import audited
from .services import Services
from .shapes import Done, Name, Placed

MUTATIONS = Toggle(
    "A2A_ENABLE_WORKSPACE_MUTATIONS", "it creates and deletes directories on the OpenCode host."
)

WORKSPACES = Extension(
    "opencode-workspace-control-v1",
    "OpenCode Workspace Control v1",
    "OpenCode's projects, workspaces and worktrees.",
    "opencode",
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
Branch = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]


class Projects(Result):
    items: list[Project]


class OneProject(Result):
    item: Project


@_read("opencode.projects.list", upstream_stability="stable")
async def list_projects(services: Services, caller: Caller, params: Placed) -> Projects:
    """The project of the workspace, and those inside it."""
    current = await services.catalog.project(await params.place(services, caller))
    root = services.places.root
    inside = [p for p in await services.catalog.projects() if Path(p.worktree).is_relative_to(root)]
    return Projects(items=[current, *(p for p in inside if p.project_id != current.project_id)])


@_read("opencode.projects.current", upstream_stability="stable")
async def current_project(services: Services, caller: Caller, params: Placed) -> OneProject:
    """The project a directory belongs to."""
    return OneProject(item=await services.catalog.project(await params.place(services, caller)))


class Workspaces(Result):
    items: list[Workspace]


class OneWorkspace(Result):
    item: Workspace


@_read("opencode.workspaces.list", upstream_stability="experimental")
async def list_workspaces(services: Services, caller: Caller, params: Placed) -> Workspaces:
    """OpenCode's workspaces for the project."""
    place = await params.place(services, caller)
    return Workspaces(items=await services.places.workspaces(caller, place))


class NewWorkspace(Params):
    type: Name
    branch: Branch | None = None


class CreateWorkspace(Placed):
    request: NewWorkspace


@_mutation("opencode.workspaces.create", upstream_stability="experimental")
async def create_workspace(
    services: Services, caller: Caller, params: CreateWorkspace
) -> OneWorkspace:
    """Make a workspace, with its files in place.

    OpenCode must have them switched on: OPENCODE_EXPERIMENTAL_WORKSPACES=1 in its environment.
    """
    place = await params.place(services, caller)
    types = await services.catalog.workspace_types(place)
    if params.request.type not in types:
        raise InvalidParams.at("request.type", f"must be one of {', '.join(types)}")
    with _audited(caller, "create workspace", params.request.type):
        made = await services.creator.create_workspace(
            caller, place, params.request.type, params.request.branch
        )
    return OneWorkspace(item=made)


class RemoveWorkspace(Placed):
    workspace_id: WorkspaceId


@_mutation("opencode.workspaces.remove", upstream_stability="experimental")
async def remove_workspace(services: Services, caller: Caller, params: RemoveWorkspace) -> Done:
    """Delete a workspace and its directory."""
    place = await params.place(services, caller)
    found = await services.places.workspace(caller, place, params.workspace_id, "workspace_id")
    with _audited(caller, "remove workspace", found.workspace_id):
        await services.creator.remove_workspace(place, found.workspace_id)
    return Done()


class Worktrees(Result):
    items: list[Worktree]


class OneWorktree(Result):
    item: Worktree


@_read("opencode.worktrees.list", upstream_stability="experimental")
async def list_worktrees(services: Services, caller: Caller, params: Placed) -> Worktrees:
    """The project's worktrees that OpenCode knows."""
    found = await services.places.worktrees(caller, await params.place(services, caller))
    return Worktrees(items=[Worktree(directory, Path(directory).name) for directory in found])


class NewWorktree(Params):
    name: Branch | None = Field(
        default=None, description="OpenCode may add to it; else it is a2a-…"
    )


class CreateWorktree(Placed):
    request: NewWorktree = NewWorktree()


@_mutation("opencode.worktrees.create", upstream_stability="experimental")
async def create_worktree(
    services: Services, caller: Caller, params: CreateWorktree
) -> OneWorktree:
    """Make a worktree with a branch of its own, and with its files in place."""
    place = await params.place(services, caller)
    with _audited(caller, "create worktree", params.request.name):
        made = await services.creator.create_worktree(caller, place, params.request.name)
    return OneWorktree(item=made)


class AWorktree(Params):
    directory: Directory


class ExistingWorktree(Placed):
    request: AWorktree

    async def listed(self, services: Services, caller: Caller) -> tuple[Place, str]:
        """The worktree, in OpenCode's own words: it would delete any directory it is told."""
        place = await self.place(services, caller)
        asked = self.request.directory
        return place, await services.places.worktree(caller, place, asked, "request.directory")


@_mutation("opencode.worktrees.remove", upstream_stability="experimental")
async def remove_worktree(services: Services, caller: Caller, params: ExistingWorktree) -> Done:
    """Delete a worktree and its branch; it must be one that OpenCode lists."""
    place, worktree = await params.listed(services, caller)
    with _audited(caller, "remove worktree", worktree):
        await services.creator.remove_worktree(place, worktree)
    return Done()


@_mutation("opencode.worktrees.reset", upstream_stability="experimental")
async def reset_worktree(services: Services, caller: Caller, params: ExistingWorktree) -> Done:
    """Bring a worktree back to the default branch, losing what was changed."""
    place, worktree = await params.listed(services, caller)
    with _audited(caller, "reset worktree", worktree):
        await services.catalog.reset_worktree(place, worktree)
    return Done()


def _audited(caller: Caller, action: str, target: str | None) -> AbstractContextManager[None]:
    return audited("audit.workspace", principal=caller.principal, action=action, target=target)
