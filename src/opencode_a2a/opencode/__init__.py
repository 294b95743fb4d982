"""The upstream side: the OpenCode server as this service starts it, calls it and listens to it."""
