"""One simple command: its forms for rules, and the commands that it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import prod

from runner.permissions.shell.arguments import (
    MOST_READINGS,
    Executing,
    absolute_folders,
    arguments_hide,
    excluded_by_find,
    executed_by_find,
    inner_commands,
    input_as_arguments,
    program_of,
    unwrap,
)
from runner.permissions.shell.builtins import (
    Risk,
    builtin_hides,
    concerns_shell,
    names_set,
    runs_text,
    variable_risk,
)
from runner.permissions.shell.files import Below, decoded, files_of, literal
from runner.permissions.shell.harmless import END_OF_PIPE, is_harmless_use, options_before
from runner.permissions.shell.mentions import is_unknown, knows_operands, listed, mentioned, scripts
from runner.permissions.shell.programs import HIDING, LIKE, RUNNERS, WRAPPERS
from runner.permissions.shell.script import Findings, Part, Script, raw_forms
from runner.permissions.shell.spellings import git_parts, is_option, spellings
from runner.permissions.shell.usages import named_by
from runner.permissions.shell.words import IS_GLOB, Assignment, Printed, Word, names, path_of

_NAME = re.compile(r"[A-Za-z0-9_./+:@\[][A-Za-z0-9_./+:@,\-\[\]]*")
_RESERVED = names("""
    if then else elif fi do done while until for case esac select function coproc in { } ! [[ ]] time""")
_RUNS_NOTHING = re.compile(
    r"(?:break|continue|exit)(?: [0-9]+| \"?\$(?:\?|\w+|\{\w+(?:\[[0-9]+\])?\})\"?)?|:", re.ASCII
)
_VERSIONED = re.compile(
    r"(?<=^pip)[0-9.]+$|(?<=^python3)\.[0-9]+$|\.exe$", re.IGNORECASE
)  # ``pip3.12`` is ``pip``
_DEEPEST = 8
_LONGEST_FORMS = 40
_SPELLED = 12
_MOST_WAYS = 16

Nested = Callable[[Findings, str, str, int], None]


class Forms(dict[str, None]):
    """The texts of one command. A deny or ask rule catches the command if it matches any of them."""

    def __init__(self, *texts: str) -> None:
        super().__init__(dict.fromkeys(texts))
        self._spelled: set[str] = set()

    def add(self, texts: Iterable[str]) -> None:
        self.update(dict.fromkeys(texts))

    def spell(self, values: Sequence[str], shown: str = "") -> None:
        """Add a command unquoted, as ``shown``, without the program's folder, and in other spellings."""
        text = " ".join(values)
        if text in self._spelled:
            return
        self._spelled.add(text)
        self.setdefault(text)
        self.setdefault(shown or text)
        name = values[0].rpartition("/")[2]
        if name.startswith(("git-", "docker-")):
            self.spell([*name.split("-", 1), *values[1:]])
        if name in LIKE:
            self.spell([LIKE[name], *values[1:]])
        plain = _VERSIONED.sub("", values[0].rstrip("/").rpartition("/")[2])
        if plain != values[0]:
            values = [plain, *values[1:]]
            self.setdefault(" ".join(values))
        self.add(map(" ".join, spellings(values)))


@dataclass(slots=True)
class SimpleCommand:
    """A simple command, as the walk reads it from the script."""

    words: Sequence[Word]
    kept: Sequence[str] = ()  # assignments before it, and wrappers, that a rule must name
    hides: str = ""
    level: int = 0
    piped: bool = False  # it reads a pipe for sure
    fed: str | None = None  # the text of its input, None if that is not literal
    given: Printed = ""  # the kind of text that a known pipe gives it
    shown: str = field(init=False)

    def __post_init__(self) -> None:
        self.shown = " ".join([word.shown for word in self.words])

    @property
    def text(self) -> str:
        """The text that an allow rule must match."""
        return " ".join([*self.kept, self.shown])


class Commands:
    """Turns simple commands into parts. ``nested`` walks a script in the arguments of a command, given
    the findings to add to, its text, the shell that reads it, and how deep it is nested."""

    def __init__(self, findings: Findings, nested: Nested) -> None:
        self.findings = findings
        self.nested = nested

    def simple(self, command: SimpleCommand, assigned: Sequence[Assignment], source: str) -> None:
        """Add a command with the assignments before it."""
        words = command.words
        if words[0].value == "read":
            # IFS says how read parts its line, and is as before when it is done.
            assigned = [each for each in assigned if each.name != "IFS"]
        risks = _risks(assigned, words)
        command.kept = [each.source for each, risk in risks if risk != "none"]
        high = [each.name for each, risk in risks if risk == "high"]
        command.hides = f"it sets {high[0]} for the command" if high else ""
        forms = Forms(source)
        if assigned:
            forms.setdefault(" ".join([*(each.source for each in assigned), command.shown]))
        self._add(command, forms)

    def declared(
        self, program: str, words: Sequence[Word], assigned: Sequence[Assignment], source: str
    ) -> None:
        """Add ``export``, ``declare`` or the like, with its options and names (``words``) and its
        assignments, unless it only sets harmless variables."""
        options = [word.value for word in words if word.value[:1] == "-"]
        exports = program == "export" or any("x" in option for option in options)
        reason = self._note_builtin(program, words)
        if any(re.match(r"[-+][A-Za-z]*[aA]", word.value) for word in words):
            self.findings.arrays = True
        first = assigned[0] if len(assigned) == 1 and program == "export" and not words else None
        if first and first.name == "PYTHONPATH" and first.value:
            self.findings.python_paths.append((Part(source, (source,)), first.value.value))
            return
        risks = {each.name: variable_risk(each.name, exports, each.value) for each in assigned}
        high = [name for name, risk in risks.items() if risk == "high"]
        unsets = program.startswith("unset") and not all(
            variable_risk(word.value, exported=False) == "none" and word.value[0] != "-"
            for word in words
        )
        low = "low" in risks.values() or (exports and words) or unsets
        if high or low or reason or not (assigned or (words and program == "unset")):
            values = [*(w.shown for w in words), *(each.source for each in assigned)]
            hides = f"it sets {high[0]}" if high else ""
            self.findings.add(" ".join([program, *values]), {source: None}, hides)

    def _note_builtin(self, program: str, arguments: Sequence[Word]) -> str:
        """Note what a builtin changes in the shell. Return why it hides what it runs, or ""."""
        findings = self.findings
        reason = builtin_hides(program, arguments)
        if reason:
            findings.give_up(reason)
        findings.tainted.update(names_set(program, arguments))
        if program in ("read", "mapfile", "readarray", "source", "."):
            findings.arrays = True
        if program in ("unset", "unsetenv", "source", "."):
            findings.functions_change = True
        return reason

    def _add(self, command: SimpleCommand, forms: Forms) -> None:
        """Add a command. ``forms`` has what deny and ask rules see of it so far."""
        words, findings, text = command.words, self.findings, command.text
        values = [word.value for word in words]
        forms.spell(values, command.shown)
        if not all(word.exact for word in words):
            read = [[text for text in decoded(word) if text] for word in words]
            ways = (read, [each[:1] for each in read], [each[-1:] for each in read])
            for way in dict.fromkeys(tuple(chain.from_iterable(texts)) for texts in ways):
                if plain := list(way):
                    forms.spell(plain)
                    runs = plain[0].rpartition("/")[2] in RUNNERS
                    forms.add(" ".join(plain[at:]) for at in range(len(plain)) if runs)
        name = values[0]
        if not words[0].exact or not _NAME.fullmatch(name):
            findings.give_up("the name of a command is not literal")
            findings.mentions += mentioned("", words[1:])[0]
            for known in named_by(name) if IS_GLOB.search(name) else ():
                forms.spell([known, *values[1:]])
            findings.add(text, forms)
            return
        program = name.rpartition("/")[2]
        if program in ("cd", "pushd", "popd"):
            home = "~" if program == "cd" else ""
            findings.move(next(iter(literal(words[-1:])), "") if len(words) > 1 else home)
            simple = program == "cd" and len(words) == 2 and words[1].exact
            findings.lost = findings.lost or not simple or values[1][:1] in ("-", "+")
        too_deep = command.level > _DEEPEST
        times = name == "time" and any(value not in ("-p", "--") for value in values[1:])
        if too_deep or (name in _RESERVED and not times):
            reason = "it is nested too deeply" if too_deep else f"{name} is out of place"
            findings.give_up(reason, text)
            findings.add(text, forms)
        elif program in WRAPPERS and len(words) > 1 and not _asks(program, words[1]):
            self._wrapper(program, command, forms)
        elif command.level == 0 and name in findings.functions and not command.hides:
            # What the function runs is among the parts already; deny rules still see its name.
            findings.calls.append(Part(text, (text, *forms)))
        elif not self._script(program, command, forms):
            self._ordinary(program, command, forms)

    def _wrapper(self, program: str, command: SimpleCommand, forms: Forms) -> None:
        text, hides, level = command.text, command.hides, command.level + 1
        inner = unwrap(program, command.words[1:])
        if program == "xargs" and command.given in ("number", "word"):
            words = [w._replace(loose=w.loose and w in command.words) for w in inner.words]
            inner = replace(inner, words=tuple(words))
        if inner.hides:
            self._unseen(command.words, forms)
            reads, _, globs = mentioned(program, command.words[1:])
            self.findings.mentions += reads
            self.findings.below += globs
            self.findings.add(text, forms, inner.hides)
            return
        risks = _risks(inner.assigned, inner.words)
        risky = [each.name for each, risk in risks if risk != "none"]
        hides = hides or (f"it sets {risky[0]} for the command" if risky else "")
        if not inner.words:
            self.findings.add(text, forms, hides)
        elif not hides:
            self._add(SimpleCommand(inner.words, command.kept, hides, level), forms)
        else:
            # A rule must be equal to all of it, wrapper and assignments included.
            self._unseen(inner.words, forms)
            before = len(self.findings.parts)
            self._add(SimpleCommand(inner.words, [], hides, level), forms)
            first = self.findings.parts[before]
            self.findings.parts[before] = Part(text, first.forms, hides, first.inner)

    def _script(self, program: str, command: SimpleCommand, forms: Forms) -> bool:
        """Add a command that runs the text of an argument (``eval``), or return False."""
        script = runs_text(program, command.words[1:])
        if script is None:
            return False
        findings = self.findings
        if script.text is None:
            self._unseen(command.words, forms)
            findings.add(command.text, forms, script.hides)
            findings.give_up(script.hides, command.text)
            return True
        before, deferred = len(findings.parts), findings.deferred
        findings.deferred = deferred or program == "trap"
        self.nested(findings, script.text, script.shell, command.level + 1)
        findings.deferred = deferred
        findings.add_outer(before, forms, command.hides)
        return True

    def _ordinary(self, program: str, command: SimpleCommand, forms: Forms) -> None:
        findings, arguments = self.findings, command.words[1:]
        findings.programs.add(program)
        if _RUNS_NOTHING.fullmatch(command.text) and (findings.loop or command.text[0] in "e:"):
            return
        if command.piped and END_OF_PIPE.fullmatch(command.text):
            findings.calls.append(Part(command.text, tuple(forms)))  # no rule has to allow it
            return
        reason = self._note_builtin(program, arguments)
        builtin = not (reason or command.hides or command.kept or command.level)
        if builtin and concerns_shell(command.words[0].value, arguments):
            part = Part(command.text, (command.text, *forms))
            (findings.inputs if program == "read" else findings.calls).append(part)
            return
        hiding = program in HIDING and not is_harmless_use(program, arguments)
        if program in HIDING and not hiding:
            self._unseen(command.words, forms)
        hides = f"{program} runs what its arguments say" if hiding else command.hides
        executing = executed_by_find(arguments) if program == "find" else None
        if program == "find":
            excluded = excluded_by_find(arguments)
            findings.words = [word for word in findings.words if id(word) not in excluded]
        own = executing.own if executing else arguments
        if command.fed is not None:
            own = [*own, *input_as_arguments(program, own, command.fed)]
        hides = hides or self._arguments_hide(program, own, forms)
        if hides or reason or (executing and executing.commands):
            self._unseen(command.words, forms, changes=bool(hides or reason))
        for text in scripts(program, arguments):
            forms.add(raw_forms(text))
        values = [word.value for word in arguments]
        if "--" in values[:-1] and program != "git" and not knows_operands(program):
            tail = values[values.index("--") + 1 :]
            forms.spell(tail)
        self._note_files(program, own, own if command.fed else arguments)
        if findings.feeds:
            findings.listed += listed(program, arguments)
        findings.unknown = findings.unknown or is_unknown(program, arguments)
        runs = self._runner(program, command, forms)
        hides = hides or runs
        inner: tuple[Part, ...] = ()
        if executing is not None:
            for words in executing.commands:
                seen = self._executed(words, executing, command.level)
                hides = hides or seen.unanalyzable
                inner += seen.parts
        folders = absolute_folders(arguments) if program == "git" else ()
        findings.add(command.text, forms, hides, inner, _plain(program, command), folders)

    def _note_files(self, program: str, own: Sequence[Word], arguments: Sequence[Word]) -> None:
        """Note the files that a program opens by its ``own`` arguments, and all that it may open."""
        findings, files = self.findings, files_of(program, own)
        findings.writes += [findings.target(path, findings.here) for path in files.writes]
        findings.matches += files.matches
        findings.operands += files.reads
        reads, writes, globs = mentioned(program, arguments)
        findings.mentions += reads
        findings.changes += (*files.changes, *writes)
        findings.below += (*files.below, *globs)

    def _arguments_hide(self, program: str, arguments: Sequence[Word], forms: Forms) -> str:
        """Return why the arguments hide what runs, "" if they hide nothing. If all values that they may
        take are known, each combination of them is looked at."""
        hides = arguments_hide(program, arguments)
        if not any(word.choices for word in arguments):
            return hides
        ways = [
            [Word(each, each) for each in word.choices] if word.choices else [word]
            for word in arguments
        ]
        known = all(each.exact or not IS_GLOB.search(each.value) for way in ways for each in way)
        if not known or prod(map(len, ways)) > _MOST_WAYS:
            return hides
        variants = [*product(*ways), [word for word in arguments if not word.choices]]
        for words in variants:
            forms.spell([program, *(word.value for word in words)])
        return hides and next(filter(None, (arguments_hide(program, w) for w in variants)), "")

    def _executed(self, words: Sequence[Word], executing: Executing, level: int) -> Script:
        """Note the files of a command that find runs on what it finds. Return its analysis."""
        findings, seen = self.findings, Findings(here=self.findings.here)
        Commands(seen, self.nested)._add(SimpleCommand(words, level=level + 1), Forms())
        script = seen.script("")
        findings.writes += [findings.target("", findings.here) for path in script.after_cd]
        findings.reads += seen.reads
        findings.mentions += seen.mentions
        # The same with a name for what is found, to see which files those are.
        named = [word._replace(exact=word.exact or "{}" in word.value) for word in words]
        files = Findings(here=findings.here)
        Commands(files, self.nested)._add(SimpleCommand(named, level=level + 1), Forms())
        findings.unknown = findings.unknown or files.unknown
        folders = list(map(path_of, executing.starts))
        filled = {path for path, *_ in files.writes if "{}" in path}
        if filled == {"{}"} and executing.stays and all(path for path, *_ in files.writes):
            findings.writes += [target for target in files.writes if target.path not in filled]
            findings.matches += [Below(folder, "**", deep=True) for folder in folders]
            findings.below += [
                Below(folder, name, deep=True) for folder in folders for name in executing.names
            ]
        else:
            findings.writes += [findings.target(path, findings.here) for path in script.writes]
        findings.matches += seen.matches
        for path in files.operands:
            findings.operands += [path] if "{}" not in path else folders
        if any("{}" in path for path in (*files.operands, *files.mentions)):
            findings.below += [
                Below(folder, name, deep=True, reads=True)
                for folder in folders
                for name in executing.names
            ]
        for path in files.changes:
            before, found, _ = path.partition("{}")
            if not found:
                findings.changes.append(path)
            else:
                into = [before.rpartition("/")[0]] if before else folders
                findings.below += [Below(folder, "**", deep=True) for folder in into]
        findings.below += files.below
        return script

    def _runner(self, program: str, command: SimpleCommand, forms: Forms) -> str:
        """Show deny and ask rules the commands of ``npx`` and its like. Return why they are not
        known in any reading of the options before them, "" if they are."""
        hidden = []
        findings = self.findings
        for words in inner_commands(program, command.words[1:]):
            findings.readings += 1
            if findings.readings > MOST_READINGS:
                findings.give_up("it can be read in too many ways")
                break
            seen = Findings(readings=findings.readings, here=findings.here)
            Commands(seen, self.nested)._add(SimpleCommand(words, level=command.level + 1), Forms())
            findings.readings = seen.readings
            forms.add(form for part in seen.parts for form in part.forms)
            findings.operands += [*(read.path for read in seen.reads), *seen.operands]
            findings.changes += [*(write.path for write in seen.writes), *seen.changes]
            findings.below += seen.below
            findings.mentions += seen.mentions
            findings.unknown = findings.unknown or seen.unknown
            findings.unread += seen.unread
            hidden.append(seen.reason or next((p.hides for p in seen.parts if p.hides), ""))
        if not hidden or not all(hidden):
            return ""
        self._unseen(command.words, forms)
        return hidden[0]

    def _unseen(self, words: Sequence[Word], forms: Forms, changes: bool = True) -> None:
        """Add what the arguments may run: each tail of them, and each argument that looks like a script.
        With ``changes`` also add the files that these commands would read or change."""
        values = [word.value for word in words]
        read = [" ".join(decoded(word)[-1:]) for word in words]
        for at in range(min(len(values), _LONGEST_FORMS)):
            forms.setdefault(" ".join(values[at:]))
            forms.setdefault(" ".join(filter(None, read[at:])))
            tail = [values[at].rpartition("/")[2], *values[at + 1 :]]
            forms.setdefault(" ".join(tail))
            if at < _SPELLED and not is_option(tail[0]):
                forms.add(map(" ".join, spellings(tail)))
            files = files_of(tail[0], words[at + 1 :])
            if changes:
                self.findings.changes += [*files.reads, *files.writes, *files.changes]
                self.findings.below += files.below
            if not words[at].exact and IS_GLOB.search(values[at]):
                rest = values[at + 1 :]
                forms.add(" ".join([known, *rest]) for known in named_by(values[at]))
            if not words[at].exact:
                forms.add(form for text in decoded(words[at]) for form in raw_forms(text))
            if re.search(r"[\s=:;]", values[at]):
                for sign in "=:":
                    forms.add(raw_forms(values[at].partition(sign)[2]))
                forms.add(raw_forms(values[at]))
                forms.add(raw_forms(re.sub(r"^-[A-Za-z]", "", values[at])))
        forms.pop("", None)


def _plain(program: str, command: SimpleCommand) -> str:
    """Return a command without harmless options before its subcommand, "" if it has none."""
    arguments = command.words[1:]
    if program == "git":
        following = git_parts(arguments)[1]
    else:
        composes = program == "docker" and any(
            word.exact and word.value == "compose" for word in arguments[:1]
        )
        first, known = (1, "docker-compose") if composes else (0, program)
        taken = first + options_before(known, arguments[first:])
        following = [*arguments[:first], *arguments[taken:]]
    if not following or len(following) == len(arguments):
        return ""
    words = (command.words[0], *following)
    return " ".join([*command.kept, *(word.shown for word in words)])


def _risks(assigned: Sequence[Assignment], words: Sequence[Word]) -> list[tuple[Assignment, Risk]]:
    program = program_of(words) if assigned else ""
    return [(each, variable_risk(each.name, True, each.value, program)) for each in assigned]


def _asks(program: str, first: Word) -> bool:
    """True for ``command -v x``, which only says what x is, and ``jobs`` without ``-x``, which lists."""
    if program == "jobs":
        return first.source != "-x"
    return program == "command" and re.fullmatch(r"-p?[vV]", first.value) is not None
