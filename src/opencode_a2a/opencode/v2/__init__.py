"""OpenCode 2.x: its messages, sessions and lists."""
