"""What `opencode-a2a doctor` looks at: each check is a declared function that ends in a verdict."""
