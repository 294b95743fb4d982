"""The A2A server edge: both protocol lines, both transports, parsed and rendered here only."""
