"""OpenCode 1.x: its messages, sessions and lists."""
