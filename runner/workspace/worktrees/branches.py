"""The names of runs' branches."""

from __future__ import annotations

_LONGEST = 100  # bytes; a ref is a file, with `.lock` after its name while it is written
_SUFFIX = 6


def branch_name(job: str, key: str, run_id: str = "") -> str:
    """``runner/<job>/<item>``; with a run's id, a name that no other run has.

    Args:
        job: the job's name.
        key: the item's key.
    """
    ending = f"-{run_id[-_SUFFIX:]}" if run_id else ""
    return f"runner/{ref_part(job)}/{ref_part(key)}{ending}"


def ref_part(text: str) -> str:
    """Any text as one part of a ref's name (https://git-scm.com/docs/git-check-ref-format): letters and
    digits stay, everything that git, a shell or a file system could take amiss becomes a dash."""
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in text)
    kept = kept.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")
    for doubled in ("--", ".."):
        while doubled in kept:
            kept = kept.replace(doubled, doubled[0])
    kept = kept.strip(".-")
    if kept.endswith(".lock"):
        kept = f"{kept.removesuffix('.lock')}-lock"
    return kept or "item"
