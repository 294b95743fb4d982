"""Plain ASGI middleware, one class per concern."""
