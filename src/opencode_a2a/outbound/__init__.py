"""What leaves this service on a caller's behalf, and the policy it leaves under."""
