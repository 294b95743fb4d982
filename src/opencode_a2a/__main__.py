"""`python -m opencode_a2a` is `opencode-a2a`."""

from .cli import main

main()
