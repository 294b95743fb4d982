"""What can go wrong when a peer is called: one tree, whichever library noticed it.

    PeerError
    ├── PeerUnreachable     nobody answers at this address
    ├── PeerNotAllowed      the egress policy forbids the address
    ├── PeerUnauthorized    it wants another credential, or one at all
    ├── PeerTimeout         it took longer than it may
    ├── PeerRefused         it answered with an error; PeerBusy: for now
    ├── PeerProtocolError   it does not speak A2A as it should; NotAnAgent: not at all
    ├── ConnectionLost      the connection broke in the middle of an answer; StreamSilent: it may
    │                       have; MessageInDoubt: before the peer has said what it makes of it
    └── TaskNotCompleted    TaskFailed, TaskRejected, TaskCanceled, InputRequired, AuthRequired

The message says what happened, the hint what to do. Neither holds a credential.
"""

from __future__ import annotations


class PeerError(Exception):
    def __init__(self, message: str, *, hint: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.retry_after = retry_after  # seconds, where the peer said so


class PeerUnreachable(PeerError):
    pass


class PeerNotAllowed(PeerError):
    pass


class PeerUnauthorized(PeerError):
    pass


class PeerTimeout(PeerError):
    pass


class PeerRefused(PeerError):
    """The peer answered with an error. `reason` is A2A's name for it, such as TASK_NOT_FOUND."""

    def __init__(
        self, message: str, *, reason: str = "", hint: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.reason = reason


class PeerBusy(PeerRefused):
    pass


class PeerProtocolError(PeerError):
    pass


class NotAnAgent(PeerProtocolError):
    pass


class AnswerTooLarge(PeerProtocolError):
    pass


class Redirected(PeerProtocolError):
    """The peer answered with a redirect, which only the search for its card follows."""

    def __init__(self, location: str) -> None:
        super().__init__(
            f"The peer redirects to {location}.",
            hint="If you trust that address, call it instead: a message and its credential are "
            "never sent on to another address.",
        )
        self.location = location


class ConnectionLost(PeerError):
    pass


class StreamSilent(ConnectionLost):
    """Nothing has arrived for long. The peer may work, or the connection may be gone."""


class MessageInDoubt(ConnectionLost):
    """No answer to a message. The peer may work on it, on a task that nobody here can name."""


class TaskNotCompleted(PeerError):
    pass


class TaskFailed(TaskNotCompleted):
    pass


class TaskRejected(TaskNotCompleted):
    pass


class TaskCanceled(TaskNotCompleted):
    pass


class InputRequired(TaskNotCompleted):
    pass


class AuthRequired(TaskNotCompleted):
    pass
