"""One simple command: what rules see of it, and what it runs in turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from runner.permissions.shell.builtins import builtin_hides, names_set, runs_text
from runner.permissions.shell.found import Found, Part
from runner.permissions.shell.names import weight
from runner.permissions.shell.programs.operands import files_of
from runner.permissions.shell.programs.risks import arguments_hide
from runner.permissions.shell.programs.runners import inner_commands
from runner.permissions.shell.programs.wrappers import HIDING, TRANSPARENT, unwrap
from runner.permissions.shell.raw import raw_forms
from runner.permissions.shell.spelling import is_option, spellings
from runner.permissions.shell.words import Word

_NAME = re.compile(r"[A-Za-z0-9_./+:@\[][A-Za-z0-9_./+:@,\-\[\]]*")
_RESERVED = frozenset(
    [
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "do",
        "done",
        "while",
        "until",
        "for",
        "case",
        "esac",
        "select",
        "function",
        "coproc",
        "in",
        "{",
        "}",
        "!",
        "[[",
        "]]",
        "time",
    ]
)
_DEEPEST = 8
_MOST_READINGS = 64
_LONGEST_FORMS = 40
_SPELLED = 12

Forms = dict[str, None]
Nested = Callable[[str, str, int], None]  # (text, shell, level): walks a script inside of this one


class Commands:
    """Turns simple commands into parts. ``nested`` walks the scripts that they have in arguments."""

    def __init__(self, found: Found, nested: Nested) -> None:
        self.found = found
        self.nested = nested

    def simple(
        self, words: Sequence[Word], assigned: Sequence[tuple[str, str]], source: str, level: int
    ) -> None:
        """The command ``words`` with ``assigned`` (name, as written) before it."""
        if words[0].value == "read":
            # IFS says how read parts its line, and is as before when it is done.
            assigned = [(name, text) for name, text in assigned if name != "IFS"]
        kept = [text for name, text in assigned if weight(name, exported=True) != "harmless"]
        grave = [name for name, _ in assigned if weight(name, exported=True) == "grave"]
        hides = f"it sets {grave[0]} for the command" if grave else ""
        forms: Forms = {source: None}
        if assigned:
            before = " ".join(text for _, text in assigned)
            forms[f"{before} {' '.join(word.shown for word in words)}"] = None
        self._command(tuple(words), kept, forms, hides, level)

    def declared(
        self,
        program: str,
        words: Sequence[Word],
        settings: Sequence[tuple[str, str]],
        source: str,
        exports: bool,
    ) -> None:
        """``export``, ``declare`` and the like with their options and names (``words``) and
        assignments. One that only sets harmless variables needs no rule."""
        reason = builtin_hides(program, words)
        if reason:
            self.found.obscure(reason)
        self.found.tainted.update(names_set(program, words))
        if program in ("unset", "unsetenv"):
            self.found.unsteady = True
        if any(re.match(r"[-+][A-Za-z]*[aA]", word.value) for word in words):
            self.found.arrays = True
        weights = {name: weight(name, exports) for name, _ in settings}
        grave = [name for name, heavy in weights.items() if heavy == "grave"]
        plain = "plain" in weights.values() or (exports and words) or program.startswith("unset")
        if grave or plain or reason or not settings:
            forms: Forms = {source: None}
            values = [*(w.shown for w in words), *(text for _, text in settings)]
            self.found.add(
                " ".join([program, *values]), forms, f"it sets {grave[0]}" if grave else ""
            )

    def _command(
        self, words: tuple[Word, ...], kept: list[str], forms: Forms, hides: str, level: int
    ) -> None:
        shown = " ".join([word.shown for word in words])
        self._spell(words, shown, forms)
        text = " ".join([*kept, shown]) if kept else shown
        name = words[0].value
        if not words[0].exact or not _NAME.fullmatch(name):
            self.found.obscure("the name of a command is not literal")
            self.found.add(text, forms)
            return
        program = name.rpartition("/")[2]
        if program in ("cd", "pushd", "popd"):
            self.found.move()
        if level > _DEEPEST or (name in _RESERVED and not (name == "time" and len(words) > 1)):
            too_deep = "it is nested too deeply" if level > _DEEPEST else ""
            self.found.miss(too_deep or f"{name} is out of place", text)
            self.found.add(text, forms)
        elif program in TRANSPARENT and len(words) > 1 and not self._asks(program, words):
            self._wrapped(program, words, kept, forms, hides, level)
        elif level == 0 and name in self.found.functions and not hides:
            # What the function runs is among the parts already; deny rules still see its name.
            self.found.calls.append(Part(text, (text, *forms)))
        elif not self._text(program, words, text, forms, hides, level):
            self._ordinary(program, words, text, forms, hides, level)

    @staticmethod
    def _asks(program: str, words: Sequence[Word]) -> bool:
        """``command -v x`` only says what x is, and ``jobs`` without ``-x`` lists."""
        if program == "jobs":
            return words[1].source != "-x"
        return program == "command" and re.fullmatch(r"-p?[vV]", words[1].value) is not None

    @staticmethod
    def _spell(words: Sequence[Word], shown: str, forms: Forms) -> None:
        values = [word.value for word in words]
        forms.setdefault(" ".join(values))
        forms.setdefault(shown)
        if "/" in values[0]:
            values[0] = values[0].rstrip("/").rpartition("/")[2]
            forms.setdefault(" ".join(values))
        for spelled in spellings(values):
            forms.setdefault(" ".join(spelled))

    def _wrapped(
        self,
        program: str,
        words: tuple[Word, ...],
        kept: list[str],
        forms: Forms,
        hides: str,
        level: int,
    ) -> None:
        inner = unwrap(program, words[1:])
        text = " ".join([*kept, *(word.shown for word in words)])
        if inner.hides:
            self._unseen(words, forms)
            self.found.add(text, forms, inner.hides)
            return
        grave = [name for name in inner.assigned if weight(name, exported=True) != "harmless"]
        hides = hides or (f"it sets {grave[0]} for the command" if grave else "")
        if not inner.words:
            self.found.add(text, forms, hides)
            return
        if hides:
            # A rule must be equal to all of it, wrapper and assignments included.
            self._unseen(inner.words, forms)
            before = len(self.found.parts)
            self._command(inner.words, [], forms, hides, level + 1)
            first = self.found.parts[before]
            self.found.parts[before] = Part(text, first.forms, hides)
            return
        self._command(inner.words, kept, forms, hides, level + 1)

    def _text(
        self,
        program: str,
        words: tuple[Word, ...],
        text: str,
        forms: Forms,
        hides: str,
        level: int,
    ) -> bool:
        """A command that runs the text of an argument: ``bash -c``, ``eval``, ``trap``."""
        script = runs_text(program, words[1:])
        if script is None:
            return False
        before = len(self.found.parts)
        if script.text is None:
            self._unseen(words, forms)
            self.found.add(text, forms, script.hides)
            self.found.miss(script.hides, text)
            return True
        deferred = self.found.deferred
        self.found.deferred = deferred or program == "trap"
        self.nested(script.text, script.shell, level + 1)
        self.found.deferred = deferred
        self.found.also(before, forms, hides)
        return True

    def _ordinary(
        self,
        program: str,
        words: tuple[Word, ...],
        text: str,
        forms: Forms,
        hides: str,
        level: int,
    ) -> None:
        reason = builtin_hides(program, words[1:])
        if reason:
            self.found.obscure(reason)
        self.found.tainted.update(names_set(program, words[1:]))
        if program in ("read", "mapfile", "readarray", "source", "."):
            self.found.arrays = True
        if program in ("unset", "source", "."):
            self.found.unsteady = True
        if program in HIDING:
            hides = f"{program} runs what its arguments say"
        hides = hides or arguments_hide(program, words[1:])
        if hides or reason:
            self._unseen(words, forms)
        files = files_of(program, words[1:])
        if files is not None:
            for path in files.writes:
                self.found.write(path, self.found.here)
            self.found.operands += files.reads
            self.found.changes += files.changes
        self.found.add(text, forms, hides or self._inner(program, words, forms, level))

    def _inner(self, program: str, words: tuple[Word, ...], forms: Forms, level: int) -> str:
        """Has deny and ask rules see what ``npx`` and its like run. Why that is not known in any
        reading of the options before it; "" when it is."""
        hidden = []
        for inner in inner_commands(program, words[1:]):
            self.found.readings += 1
            if self.found.readings > _MOST_READINGS:
                self.found.obscure("it can be read in too many ways")
                break
            seen = self.found.aside(
                lambda inner=inner: self._command(inner, [], {}, "", level + 1)  # type: ignore[misc]
            )
            forms.update(dict.fromkeys(form for part in seen.parts for form in part.forms))
            self.found.operands += [*(read.path for read in seen.reads), *seen.operands]
            self.found.changes += [*(write.path for write in seen.writes), *seen.changes]
            self.found.unread += seen.unread
            hidden.append(seen.reason or next((p.hides for p in seen.parts if p.hides), ""))
        if not hidden or not all(hidden):
            return ""
        self._unseen(words, forms)
        return hidden[0]

    def _unseen(self, words: Sequence[Word], forms: Forms) -> None:
        """What may be run by the arguments: each tail of them, and each that looks like a script."""
        values = [word.value for word in words]
        for at in range(min(len(values), _LONGEST_FORMS)):
            forms.setdefault(" ".join(values[at:]))
            base = values[at].rpartition("/")[2]
            forms.setdefault(" ".join([base, *values[at + 1 :]]))
            if at < _SPELLED and not is_option(base):
                for spelled in spellings([base, *values[at + 1 :]]):
                    forms.setdefault(" ".join(spelled))
            files = files_of(base, words[at + 1 :])
            if files is not None:
                self.found.changes += [*files.reads, *files.writes, *files.changes]
            if re.search(r"[\s=:;]", values[at]):
                forms.update(dict.fromkeys(raw_forms(values[at].partition("=")[2])))
                forms.update(dict.fromkeys(raw_forms(values[at])))
        forms.pop("", None)
