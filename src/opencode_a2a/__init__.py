"""OpenCode as a stateful A2A service: a translator with a memory."""

__version__ = "0.1.0"
