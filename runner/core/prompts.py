"""What Runner itself says to the model, as the user."""

from __future__ import annotations

CONTINUE_TEXT = "Your reply was cut off at the output limit. Go on from where it stopped."
NUDGE_TEXT = (
    "Your last reply was empty. If the task is done, say so in a sentence; if not, go on with it."
)
SMALLER_STEPS_TEXT = (
    "Your reply was cut off at the output limit before any part of it was whole. "
    "Go on in smaller steps."
)
RESUME_TEXT = "Go on."

OWN_TEXTS = frozenset({CONTINUE_TEXT, NUDGE_TEXT, SMALLER_STEPS_TEXT, RESUME_TEXT})
