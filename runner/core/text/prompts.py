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
RESULT_TEXT = (
    "You have not submitted your result. If the work is done, call submit_result with it; "
    "if not, go on with the work first."
)
VERIFY_TEXT = (
    "Your work was verified and does not pass yet. This is what the command below gave; mend what "
    "it shows, and end your turn when it is mended.\n\n$ {command}\n{output}"
)
# To a coordinator, after its task.
SPLIT_TEXT = (
    "Do not do this task yourself. First look at as much as you need to see its parts, then call "
    "split_task with the parts: others work on them side by side. You are given what they made of "
    "them, and join it."
)
SPLIT_AGAIN_TEXT = "You have not split the task. Call split_task with its parts now."
WHOLE_TEXT = (
    "As the task was not split, one sub-agent was given the whole of it. What it gave is below. Say "
    "what came of the task.\n\n{result}"
)
# To a run that goes on from a turn of another, when that one's folders are named there.
_FORKED = (
    "Where paths above have {theirs}, yours have {ours} in its place: use those, or paths below your "
    "current folder, and leave the others alone."
)
FORKED_TEXT = f"From here on this conversation is another run's. {_FORKED}"
FORKED_WITH_FILES_TEXT = (
    "From here on this conversation is another run's, which works in a folder of its own with the "
    f"same files. {_FORKED}"
)

# To a sub-agent that begins with the conversation of another, when that one's outputs are named there.
SNAPSHOT_TEXT = (
    "What the paths of outputs above say is in the folder outputs/{theirs} is for you in "
    "outputs/{ours}, under the same name."
)

OWN_TEXTS = frozenset(
    {
        CONTINUE_TEXT,
        NUDGE_TEXT,
        SMALLER_STEPS_TEXT,
        RESUME_TEXT,
        RESULT_TEXT,
        SPLIT_AGAIN_TEXT,
    }
)
