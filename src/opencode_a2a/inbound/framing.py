"""What stands around a result or an error on the wire: nothing in REST, a JSON-RPC response else.

A framing wraps JSON that somebody else has encoded, and never looks into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import orjson
from starlette.responses import Response

from ..errors import ServiceError
from .dialect import Dialect
from .failures import JSON, rest_media_type, rest_response, rpc_response

RequestId = str | int | None


class Framing(Protocol):
    @property
    def media_type(self) -> str: ...

    def sides(self) -> tuple[bytes, bytes]:
        """What stands before and after a result, or one event of a stream."""
        ...

    def refusal(self, error: ServiceError) -> Response: ...


@dataclass(frozen=True, slots=True)
class RestFraming:
    dialect: Dialect

    @property
    def media_type(self) -> str:
        return rest_media_type(self.dialect)

    def sides(self) -> tuple[bytes, bytes]:
        return b"", b""

    def refusal(self, error: ServiceError) -> Response:
        return rest_response(error, self.dialect)


@dataclass(slots=True)
class RpcFraming:
    """Filled in while a request is read: an error is answered with what is known by then."""

    dialect: Dialect
    request_id: RequestId = None

    @property
    def media_type(self) -> str:
        return JSON

    def sides(self) -> tuple[bytes, bytes]:
        return b'{"jsonrpc":"2.0","id":%b,"result":' % orjson.dumps(self.request_id), b"}"

    def refusal(self, error: ServiceError) -> Response:
        return rpc_response(error, self.dialect, self.request_id)
