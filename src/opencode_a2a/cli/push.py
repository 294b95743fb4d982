"""The commands about push notifications: look at configs and dead letters."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

import httpx

from ..config import ConfigError
from ..outbound.target import Login, Target
from ..peers import find_target, origins_of
from .failure import CommandError
from .printer import printable

Json = dict[str, Any]

DEFAULT_SERVICE = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 330.0  # to send 20 dead letters again may take so long


def run_push(arguments: argparse.Namespace) -> int:
    """Run one of the commands; its exit code."""
    try:
        service = _Service(_target(arguments))
        if arguments.command == "push list":
            params = {"taskId": arguments.task}
            found = service.call("ListTaskPushNotificationConfigs", params)["configs"]
            _show(found, ("id", "url"), as_json=arguments.json)
            return 0
        params = {"task_id": arguments.task} if arguments.task else {}
        if arguments.command == "push dead":
            found = service.call("opencode.push.deadletters.list", params)["items"]
            columns = ("event_id", "url", "event_at", "attempts", "error")
            _show(found, columns, as_json=arguments.json)
            return 0
        return _redeliver(service, params)
    except ConfigError as exc:
        raise CommandError("; ".join(exc.problems), 2) from None


def _target(arguments: argparse.Namespace) -> Target:
    from .call import client_settings, kept_token  # slow to load

    target = find_target(client_settings(arguments), arguments.service or DEFAULT_SERVICE)
    if not target.login.headers and (token := kept_token(target.url)) is not None:
        login = Login(origins_of(target.url), (("Authorization", f"Bearer {token}"),))
        target = replace(target, login=login)
    return target


class _Service:
    """A running service, spoken to over JSON-RPC."""

    def __init__(self, target: Target) -> None:
        self._url = target.url
        self._headers = dict(target.login.headers) | {"A2A-Version": "1.0"}

    def call(self, method: str, params: Json) -> Json:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        tls = httpx.create_ssl_context(trust_env=True)
        try:
            # No proxy of the environment: the credential is for the service alone.
            with httpx.Client(verify=tls, trust_env=False, timeout=TIMEOUT_SECONDS) as http:
                answer = http.post(self._url, json=body, headers=self._headers).json()
        except httpx.HTTPError:
            raise CommandError(f"{self._url}: no service answers there") from None
        except ValueError:
            raise CommandError(f"{self._url}: the answer is not A2A") from None
        if "error" in answer:
            raise CommandError(str(answer["error"].get("message", "refused")))
        found: Json = answer["result"]
        return found


def _show(rows: list[Json], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = [tuple(name.upper().replace("_", " ") for name in columns)]
    table += [tuple(str(row.get(name, "")) for name in columns) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(printable(line.rstrip()))


def _redeliver(service: _Service, params: Json) -> int:
    delivered = 0
    while True:
        found = service.call("opencode.push.deadletters.redeliver", params)
        delivered += found["delivered"]
        if found["failed"] or not found["more"]:
            break
    print(f"{delivered} delivered")
    for letter in found["failed"]:
        about = f"{letter['event_id']} to {letter['url']}: {letter['error']}"
        print(f"opencode-a2a: not taken: {printable(about)}", file=sys.stderr)
    return 1 if found["failed"] else 0
