"""A model for the first run, when no provider is configured yet."""
