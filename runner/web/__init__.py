"""``runner web``: what happened, what waits and what anything cost, in a browser."""
