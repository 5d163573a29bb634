"""Options of ``run`` and ``submit`` that change a job file for one submission."""

from __future__ import annotations

import difflib
import hashlib
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.errors import Problem
from runner.jobfile.items import Keyed, fields_in
from runner.jobfile.values import shown

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Overrides:
    """The changes of a job file, as they were typed."""

    only: tuple[str, ...] = ()  # keys of the items to work
    first: int | None = None  # items to work, from the first one
    sample: int | None = None  # items to work, always the same ones
    model: str | None = None
    limits: tuple[str, ...] = ()  # such as "max_turns=5"
    fields: tuple[str, ...] = ()  # such as "item.level=3"

    @property
    def options(self) -> tuple[str, ...]:
        """The options, each with its value as a shell takes it."""
        typed = (
            *(("--only", key) for key in self.only),
            ("--first", self.first),
            ("--sample", self.sample),
            ("--model", self.model),
            *(("--limits", limit) for limit in self.limits),
            *(("--set", field) for field in self.fields),
        )
        return tuple(
            f"{name} {shlex.quote(str(value))}" for name, value in typed if value is not None
        )

    def changed(self, data: Mapping[str, Any], problems: list[Problem]) -> Mapping[str, Any]:
        """Return the values of a job file with the model and the limits of the options."""
        limits = data.get("limits", {})
        if self.limits and isinstance(limits, Mapping):
            own = dict(_pairs("--limits", self.limits, "max_turns=5", problems))
            data = {**data, "limits": {**limits, **{name: _read(own[name]) for name in own}}}
        return data if self.model is None else {**data, "model": self.model}

    def chosen(
        self, keyed: Sequence[Keyed], templates: Iterable[str], problems: list[Problem]
    ) -> list[Keyed]:
        """Return the items to work, with the fields of the options. ``templates`` may use fields that
        no item has yet."""
        known = [key for key, _ in keyed]
        for key in self.only:
            if keyed and key not in known:
                message = f"no item has the key {shown(key)}{_meant(key, known)}"
                problems.append(Problem("--only", message))
        if self.only:
            keyed = [pair for pair in keyed if pair[0] in self.only]
        if self.sample is not None:
            drawn = sorted(known, key=lambda key: hashlib.sha256(key.encode()).digest())
            kept = set(drawn[: self.sample])
            keyed = [pair for pair in keyed if pair[0] in kept]
        keyed = list(keyed[: self.first])
        return self._with_fields(keyed, templates, problems) if self.fields else keyed

    def _with_fields(
        self, keyed: list[Keyed], templates: Iterable[str], problems: list[Problem]
    ) -> list[Keyed]:
        own = dict(_pairs("--set", self.fields, "item.level=3", problems))
        items = [item for _, item in keyed if isinstance(item, Mapping)]
        if keyed and not items:
            what = "the job has no [items]" if keyed[0][1] is None else "the items are strings"
            problems.append(Problem("--set", f"{what}: only items that are tables have fields"))
            return keyed
        known = {
            *(name for item in items for name in item),
            *(name for text in templates for name in fields_in(text)),
        } - {"key"}
        for typed in own:
            name = typed.removeprefix("item.")
            if name == typed:
                message = f"{shown(typed)} is not a field of an item: write item.NAME=VALUE"
            elif name == "key":
                message = "item.key names the run and stays as it is: choose with --only"
            elif name not in known:
                message = (
                    f"no item and no template has the field {shown(name)}{_meant(name, known)}"
                )
            else:
                continue
            problems.append(Problem("--set", message))
        fields = {typed.removeprefix("item."): text for typed, text in own.items()}
        return [
            (key, {**item, **{name: _like(item.get(name), fields[name]) for name in fields}})
            if isinstance(item, Mapping)
            else (key, item)
            for key, item in keyed
        ]

    def placed(self, problems: Iterable[Problem]) -> list[Problem]:
        """Return problems, those of a value that an option gave at the option."""
        names = {f"limits.{typed.partition('=')[0]}": typed for typed in self.limits}
        places = {place: f"--limits {typed}" for place, typed in names.items()}
        if self.model is not None:
            places["model"] = f"--model {self.model}"
        return [replace(each, place=places.get(each.place, each.place)) for each in problems]


def _pairs(
    option: str, typed: Iterable[str], example: str, problems: list[Problem]
) -> Iterator[tuple[str, str]]:
    for text in typed:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name and equals and value:
            yield name, value
        else:
            problems.append(Problem(option, f"{shown(text)} is not NAME=VALUE, such as {example}"))


def _read(text: str) -> Any:
    """Return a value written as in TOML; other text as a string, such as ``30m``."""
    try:
        read = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    return read["value"] if len(read) == 1 else text


def _like(before: Any, text: str) -> Any:
    """Return a field's new value; it is a text where the old one was, or there was none."""
    return text if before is None or isinstance(before, str) else _read(text)


def _meant(name: str, known: Iterable[str]) -> str:
    names = list(known)
    if near := difflib.get_close_matches(name, names, 1):
        return f"; did you mean {near[0]}?"
    more = ", …" if len(names) > _MOST_NAMED else ""
    return f"; there are {', '.join(names[:_MOST_NAMED])}{more}" if names else ""
