"""A2A clients written elsewhere, and other versions of OpenCode: `make interop`."""
