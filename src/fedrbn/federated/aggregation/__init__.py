"""How uploads become the next shared weights."""
