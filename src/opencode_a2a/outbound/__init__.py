"""Requests that this service sends on a caller's behalf, and the policy for them."""
