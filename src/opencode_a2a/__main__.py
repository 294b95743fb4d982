"""The program: `opencode-a2a`, or `python -m opencode_a2a`."""

from .cli import main, server_main

__all__ = ["main", "server_main"]

if __name__ == "__main__":
    main()
