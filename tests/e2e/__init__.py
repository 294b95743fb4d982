"""OpenCode behind the service, asked by the A2A clients that people really use."""
