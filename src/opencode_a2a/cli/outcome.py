"""How calls end: the exit code of every outcome."""

from __future__ import annotations

from ..outbound.failures import (
    AuthRequired,
    ConnectionLost,
    InputRequired,
    PeerError,
    PeerNotAllowed,
    PeerProtocolError,
    PeerRefused,
    PeerTimeout,
    PeerUnauthorized,
    PeerUnreachable,
    TaskCanceled,
    TaskFailed,
    TaskRejected,
)

COMPLETED, USAGE, INVALID_CARD, LEFT = 0, 2, 8, 130
EXIT_CODES: dict[type[PeerError], int] = {
    TaskFailed: 1,
    TaskCanceled: 3,
    TaskRejected: 4,
    InputRequired: 5,
    AuthRequired: 6,
    PeerUnauthorized: 6,
    PeerUnreachable: 7,
    PeerNotAllowed: 7,
    ConnectionLost: 7,
    PeerProtocolError: 8,
    PeerTimeout: 9,
    PeerRefused: 10,
}


def exit_code(error: PeerError) -> int:
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
