"""Use cases: asynchronous, and knowing only the domain and its ports."""
