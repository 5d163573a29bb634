"""How rules are written: their syntax and patterns, and the shorthands that expand to them."""
