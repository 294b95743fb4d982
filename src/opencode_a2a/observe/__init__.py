"""What an operator can see of a running service: metrics, traces, and the audit log."""
