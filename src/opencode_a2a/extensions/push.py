"""Push notifications beyond A2A: every event, and what receivers have not taken."""

from __future__ import annotations

from pydantic import Field

from ..contract.declare import Extension, Toggle
from ..contract.params import Params, Result
from ..domain.push import DeadLetter, event_id
from ..domain.scopes import Scope
from ..domain.values import Caller, timestamp
from .services import Services

EVERY_EVENT = Extension(
    "opencode-push-v1",
    title="OpenCode Push v1",
    description="Push notifications of every event where a client activates it with a push config. "
    "What receivers have not taken is listed and sent again.",
    scope="opencode",
    extended={
        "activation": ["A2A-Extensions", "X-A2A-Extensions", "message.extensions"],
        "without_activation": "changes of state, and the whole task at its end",
        "headers": {
            "webhook-id": "the event: the same for every attempt and every config",
            "webhook-timestamp": "when it was sent, in seconds",
            "webhook-signature": "HMAC as Standard Webhooks defines it; the key is the credentials "
            "of the scheme HMAC-SHA256, or else the token",
            "A2A-Notification-Attempt": "1, or more if it is sent again",
            "A2A-Notification-JWT": "signed with a key of /.well-known/jwks.json; as Authorization "
            "where the config has the scheme Bearer without credentials",
        },
        "web_push": {
            "scheme": "WebPush",
            "url": "the endpoint of a PushSubscription",
            "credentials": "its p256dh, a dot, its auth",
            "application_server_key": "the first key of /.well-known/jwks.json",
            "events": "only that the task waits for a person, and its end; at most 3993 bytes",
        },
        "dead_letters": "kept for 14 days after the end of the task",
    },
)
_TOGGLE = Toggle("A2A_PUSH", "push notifications are off.")

TaskId = Field(default=None, max_length=64, description="Only of this task")
ConfigId = Field(default=None, max_length=255, description="Only of this push config")


class LettersOf(Params):
    task_id: str | None = TaskId
    config_id: str | None = ConfigId


class Letter(Result):
    """An event that a receiver has not taken in time."""

    task_id: str
    config_id: str
    event_id: str = Field(description="What `webhook-id` was")
    url: str
    event_at: str
    attempts: int
    error: str = Field(description="What the last attempt ended with")

    @classmethod
    def of(cls, letter: DeadLetter) -> Letter:
        config = letter.config
        return cls(
            task_id=config.head.id,
            config_id=config.id,
            event_id=event_id(config.head.id, letter.seq),
            url=config.target.url,
            event_at=timestamp(letter.at),
            attempts=letter.attempts,
            error=letter.error,
        )


class Letters(Result):
    items: list[Letter]


class Redelivery(Result):
    delivered: int
    failed: list[Letter] = Field(description="Not taken this time either; others were not tried")
    more: bool = Field(description="There are dead letters left: call it again")


@EVERY_EVENT.method("opencode.push.deadletters.list", scope=Scope.TASKS_READ, toggle=_TOGGLE)
async def list_dead_letters(services: Services, caller: Caller, params: LettersOf) -> Letters:
    """The notifications of this caller's tasks that receivers have not taken; the oldest 100."""
    found = await services.notifications.dead_letters(
        caller, task_id=params.task_id, config_id=params.config_id
    )
    return Letters(items=[Letter.of(letter) for letter in found])


@EVERY_EVENT.method("opencode.push.deadletters.redeliver", scope=Scope.TASKS_WRITE, toggle=_TOGGLE)
async def redeliver_dead_letters(
    services: Services, caller: Caller, params: LettersOf
) -> Redelivery:
    """Send up to 20 dead letters again, the oldest first."""
    tried = await services.notifications.redeliver(
        caller, task_id=params.task_id, config_id=params.config_id
    )
    left = await services.notifications.dead_letters(
        caller, task_id=params.task_id, config_id=params.config_id, limit=1
    )
    return Redelivery(
        delivered=sum(answer.error is None for _, answer in tried),
        failed=[Letter.of(letter) for letter, answer in tried if answer.error is not None],
        more=bool(left),
    )
