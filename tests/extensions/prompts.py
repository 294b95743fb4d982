"""An MCP server on stdin and stdout with one prompt, which puts its argument into a shell command.

python -m tests.extensions.prompts
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"prompts": {}, "tools": {}},
                "serverInfo": {"name": "prompts", "version": "1"},
            }
        case "tools/list":
            return {"tools": []}
        case "prompts/list":
            return {"prompts": [{"name": "tell", "arguments": [{"name": "what"}]}]}
        case "prompts/get":
            text = f"[[text:PROMPTED]] !`{params['arguments']['what']}`"
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
        case _:
            return None


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params", {}))
        outcome = {"result": result} if result else {"error": {"code": -32601, "message": "No."}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
