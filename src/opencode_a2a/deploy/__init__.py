"""Deployment: many instances under systemd, or one user's own in the background."""
