"""Limits of a run, what is left of them, and what the next call could cost at the worst."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_CALL_ALLOWANCE = 2_000  # tokens that the API adds around the first prompt
LEAST_OUTPUT_TOKENS = 1_024  # with less room than this a call is not worth making


@dataclass(frozen=True, slots=True)
class Limits:
    """A run's limits. ``tool_timeout`` (of a call that asks for no time itself) and ``deadline`` (from
    the run's submission) are seconds; ``max_output_tokens`` bounds one reply."""

    max_turns: int = 50
    token_ceiling: int = 5_000_000
    max_output_tokens: int = 32_000
    tool_timeout: float = 120.0
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a model call may use at the most, in tokens."""

    max_tokens: int
    worst_case: int
    lowered: bool


def prompt_bound(last_prompt_tokens: int | None, appended_bytes: int) -> int:
    """The most tokens that the next prompt can have.

    Args:
        last_prompt_tokens: real input of the last call whose usage is known, None before the first.
        appended_bytes: UTF-8 bytes appended since that call (before the first: all bytes of system
            prompt, tool definitions and messages).
    """
    if last_prompt_tokens is None:
        return appended_bytes + FIRST_CALL_ALLOWANCE
    return last_prompt_tokens + appended_bytes


def reserve(
    limits: Limits, charged_tokens: int, prompt: int, thinking_tokens: int = 0
) -> Reservation | None:
    """What the next call may use without ever crossing the ceiling, or None when there is no room.

    Args:
        charged_tokens: tokens charged so far (real usage, worst case where that is unknown).
        prompt: the bound from ``prompt_bound``.
        thinking_tokens: the job's ``budget_tokens``, which ``max_tokens`` has to exceed.
    """
    room = limits.token_ceiling - charged_tokens - prompt
    if room < LEAST_OUTPUT_TOKENS + thinking_tokens and room < limits.max_output_tokens:
        return None
    max_tokens = min(limits.max_output_tokens, room)
    return Reservation(max_tokens, prompt + max_tokens, max_tokens < limits.max_output_tokens)
