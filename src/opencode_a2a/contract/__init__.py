"""How a capability is declared, called and described; knows nothing of OpenCode."""
