"""How a run comes to its end: what it must submit, what verifies it, what it delivers."""
