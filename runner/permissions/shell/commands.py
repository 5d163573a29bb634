"""One simple command: what rules see of it, and what it runs in turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runner.permissions.shell.arguments import arguments_hide, inner_commands, unwrap
from runner.permissions.shell.builtins import builtin_hides, names_set, runs_text, variable_risk
from runner.permissions.shell.files import files_of
from runner.permissions.shell.programs import HIDING, WRAPPERS
from runner.permissions.shell.script import Findings, Part, raw_forms
from runner.permissions.shell.spellings import is_option, spellings
from runner.permissions.shell.words import Word, names

_NAME = re.compile(r"[A-Za-z0-9_./+:@\[][A-Za-z0-9_./+:@,\-\[\]]*")
_RESERVED = names("""
    if then else elif fi do done while until for case esac select function coproc in { } ! [[ ]] time""")
_DEEPEST = 8
_MOST_READINGS = 64
_LONGEST_FORMS = 40
_SPELLED = 12

Forms = dict[str, None]
Nested = Callable[[Findings, str, str, int], None]


@dataclass(slots=True)
class _Command:
    words: tuple[Word, ...]
    kept: list[str]  # assignments before it, and wrappers, that a rule must name
    forms: Forms
    hides: str
    level: int
    shown: str = field(init=False)
    text: str = field(init=False)  # what an allow rule must match

    def __post_init__(self) -> None:
        self.shown = " ".join([word.shown for word in self.words])
        self.text = " ".join([*self.kept, self.shown]) if self.kept else self.shown


class Commands:
    """Turns simple commands into parts.

    Args:
        nested: walks a script in the arguments of a command, given the findings to add to, its text,
            the shell that reads it, and how deep it is nested.
    """

    def __init__(self, findings: Findings, nested: Nested) -> None:
        self.findings = findings
        self.nested = nested

    def simple(
        self, words: Sequence[Word], assigned: Sequence[tuple[str, str]], source: str, level: int
    ) -> None:
        """Add the command ``words`` with ``assigned`` (name, as written) before it."""
        if words[0].value == "read":
            # IFS says how read parts its line, and is as before when it is done.
            assigned = [(name, text) for name, text in assigned if name != "IFS"]
        risks = [(variable_risk(name, exported=True), name, text) for name, text in assigned]
        kept = [text for risk, _, text in risks if risk != "none"]
        high = [name for risk, name, _ in risks if risk == "high"]
        hides = f"it sets {high[0]} for the command" if high else ""
        forms: Forms = {source: None}
        if assigned:
            before = " ".join(text for _, text in assigned)
            forms[f"{before} {' '.join(word.shown for word in words)}"] = None
        self._add(_Command(tuple(words), kept, forms, hides, level))

    def declared(
        self,
        program: str,
        words: Sequence[Word],
        assigned: Sequence[tuple[str, str]],
        source: str,
        exports: bool,
    ) -> None:
        """Add ``export``, ``declare`` or the like, unless it only sets harmless variables.

        Args:
            words: its options and names.
            assigned: its assignments: name, as written.
        """
        reason = builtin_hides(program, words)
        if reason:
            self.findings.give_up(reason)
        self.findings.tainted.update(names_set(program, words))
        if program in ("unset", "unsetenv"):
            self.findings.functions_change = True
        if any(re.match(r"[-+][A-Za-z]*[aA]", word.value) for word in words):
            self.findings.arrays = True
        risks = {name: variable_risk(name, exports) for name, _ in assigned}
        high = [name for name, risk in risks.items() if risk == "high"]
        low = "low" in risks.values() or (exports and words) or program.startswith("unset")
        if high or low or reason or not assigned:
            values = [*(w.shown for w in words), *(text for _, text in assigned)]
            hides = f"it sets {high[0]}" if high else ""
            self.findings.add(" ".join([program, *values]), {source: None}, hides)

    def _add(self, command: _Command) -> None:
        words, findings, text = command.words, self.findings, command.text
        self._spell(command)
        name = words[0].value
        if not words[0].exact or not _NAME.fullmatch(name):
            findings.give_up("the name of a command is not literal")
            findings.add(text, command.forms)
            return
        program = name.rpartition("/")[2]
        if program in ("cd", "pushd", "popd"):
            findings.move()
        too_deep = command.level > _DEEPEST
        if too_deep or (name in _RESERVED and not (name == "time" and len(words) > 1)):
            findings.give_up(
                "it is nested too deeply" if too_deep else f"{name} is out of place", text
            )
            findings.add(text, command.forms)
        elif program in WRAPPERS and len(words) > 1 and not self._asks(program, words):
            self._wrapper(program, command)
        elif command.level == 0 and name in findings.functions and not command.hides:
            # What the function runs is among the parts already; deny rules still see its name.
            findings.calls.append(Part(text, (text, *command.forms)))
        elif not self._script(program, command):
            self._ordinary(program, command)

    @staticmethod
    def _asks(program: str, words: Sequence[Word]) -> bool:
        """``command -v x`` only says what x is, and ``jobs`` without ``-x`` lists."""
        if program == "jobs":
            return words[1].source != "-x"
        return program == "command" and re.fullmatch(r"-p?[vV]", words[1].value) is not None

    @staticmethod
    def _spell(command: _Command) -> None:
        forms = command.forms
        values = [word.value for word in command.words]
        forms.setdefault(" ".join(values))
        forms.setdefault(command.shown)
        if "/" in values[0]:
            values[0] = values[0].rstrip("/").rpartition("/")[2]
            forms.setdefault(" ".join(values))
        for spelled in spellings(values):
            forms.setdefault(" ".join(spelled))

    def _wrapper(self, program: str, command: _Command) -> None:
        text, forms = command.text, command.forms
        inner = unwrap(program, command.words[1:])
        if inner.hides:
            self._unseen(command.words, forms)
            self.findings.add(text, forms, inner.hides)
            return
        risky = [n for n in inner.assigned if variable_risk(n, exported=True) != "none"]
        hides = command.hides or (f"it sets {risky[0]} for the command" if risky else "")
        if not inner.words:
            self.findings.add(text, forms, hides)
            return
        if not hides:
            self._add(_Command(inner.words, command.kept, forms, hides, command.level + 1))
            return
        # A rule must be equal to all of it, wrapper and assignments included.
        self._unseen(inner.words, forms)
        before = len(self.findings.parts)
        self._add(_Command(inner.words, [], forms, hides, command.level + 1))
        first = self.findings.parts[before]
        self.findings.parts[before] = Part(text, first.forms, hides)

    def _script(self, program: str, command: _Command) -> bool:
        """Add a command that runs the text of an argument (``bash -c``, ``eval``, ``trap``). Return
        False if it is none."""
        script = runs_text(program, command.words[1:])
        if script is None:
            return False
        findings = self.findings
        if script.text is None:
            self._unseen(command.words, command.forms)
            findings.add(command.text, command.forms, script.hides)
            findings.give_up(script.hides, command.text)
            return True
        before = len(findings.parts)
        deferred = findings.deferred
        findings.deferred = deferred or program == "trap"
        self.nested(findings, script.text, script.shell, command.level + 1)
        findings.deferred = deferred
        findings.add_outer(before, command.forms, command.hides)
        return True

    def _ordinary(self, program: str, command: _Command) -> None:
        findings, arguments = self.findings, command.words[1:]
        reason = builtin_hides(program, arguments)
        if reason:
            findings.give_up(reason)
        findings.tainted.update(names_set(program, arguments))
        if program in ("read", "mapfile", "readarray", "source", "."):
            findings.arrays = True
        if program in ("unset", "source", "."):
            findings.functions_change = True
        hides = command.hides
        if program in HIDING:
            hides = f"{program} runs what its arguments say"
        hides = hides or arguments_hide(program, arguments)
        if hides or reason:
            self._unseen(command.words, command.forms)
        files = files_of(program, arguments)
        if files is not None:
            findings.writes += [findings.target(path, findings.here) for path in files.writes]
            findings.operands += files.reads
            findings.changes += files.changes
        hides = hides or self._runner(program, command)
        findings.add(command.text, command.forms, hides)

    def _runner(self, program: str, command: _Command) -> str:
        """Have deny and ask rules see what ``npx`` and its like run. Return why that is not known in
        any reading of the options before it, "" if it is."""
        hidden = []
        findings = self.findings
        for words in inner_commands(program, command.words[1:]):
            findings.readings += 1
            if findings.readings > _MOST_READINGS:
                findings.give_up("it can be read in too many ways")
                break
            seen = Findings(readings=findings.readings)
            Commands(seen, self.nested)._add(_Command(words, [], {}, "", command.level + 1))
            findings.readings = seen.readings
            command.forms.update(dict.fromkeys(form for part in seen.parts for form in part.forms))
            findings.operands += [*(read.path for read in seen.reads), *seen.operands]
            findings.changes += [*(write.path for write in seen.writes), *seen.changes]
            findings.unread += seen.unread
            hidden.append(seen.reason or next((p.hides for p in seen.parts if p.hides), ""))
        if not hidden or not all(hidden):
            return ""
        self._unseen(command.words, command.forms)
        return hidden[0]

    def _unseen(self, words: Sequence[Word], forms: Forms) -> None:
        """Add what may be run by the arguments: each tail of them, and each that looks like a script."""
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
                self.findings.changes += [*files.reads, *files.writes, *files.changes]
            if re.search(r"[\s=:;]", values[at]):
                forms.update(dict.fromkeys(raw_forms(values[at].partition("=")[2])))
                forms.update(dict.fromkeys(raw_forms(values[at])))
        forms.pop("", None)
