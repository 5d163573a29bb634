from dataclasses import replace

import pytest

from runner.permissions import Request, ResolvedPath, Rule, ToolContext
from runner.permissions.decisions import MOST_ACCESSES, Policy, evaluate, may_touch

PLACES = {
    name: ResolvedPath(f"/w/{name}", f"/w/{name}")
    for name in ("a.py", "src", "src/a.py", ".env", "out.txt")
} | {
    ".": ResolvedPath("/w", "/w"),
    "link": ResolvedPath("/w/link", "/etc/passwd"),
    "/out/1": ResolvedPath("/out/1", "/out/1"),
}
SETTING = ToolContext("/w", "/out", "/home/me", PLACES)


def policy(*texts, default="deny"):
    """Rules as "allow Bash(ls)"; "remembered …" is an allow rule that a person's answer left."""
    rules = []
    for text in texts:
        effect, _, rest = text.partition(" ")
        remembered = effect == "remembered"
        rules.append(Rule("allow", rest, origin="remembered") if remembered else Rule(effect, rest))
    return Policy(tuple(rules), default, 7)


def bash(rules, command, **options):
    return evaluate(policy(*rules, **options), Request("Bash", {"command": command}, SETTING))


def read(rules, path, tool="Read"):
    return evaluate(policy(*rules), Request(tool, {"file_path": path, "path": path}, SETTING))


def test_a_deny_stands_above_what_a_person_remembered():
    assert bash(["deny Bash(rm *)", "remembered Bash(rm x)"], "rm x").effect == "deny"


def test_what_a_person_remembered_stands_above_the_rules_that_ask():
    assert bash(["ask Bash(rm *)", "remembered Bash(rm x)"], "rm x").effect == "allow"
    assert bash(["ask Bash(rm *)", "remembered Bash(rm x)"], "rm y").effect == "ask"


def test_an_ask_stands_above_an_allow_that_is_more_special():
    assert (
        bash(["allow Bash(git push origin main)", "ask Bash"], "git push origin main").effect
        == "ask"
    )


@pytest.mark.parametrize("default", ["ask", "deny"])
def test_what_no_rule_matches_is_the_default(default):
    decision = bash(["allow Bash(ls)"], "pwd", default=default)
    assert (decision.effect, decision.matched_rules, decision.snapshot) == (default, (), 7)


TRUSTING = replace(
    policy("deny Bash(rm *)", "ask Bash(git push *)", "deny Edit(.env)", "allow Bash(ls *)"),
    trusts_contained=True,
)


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("make", "allow"),
        ("make && ls -l > out.txt", "allow"),
        ("make && rm x", "deny"),
        ("make && git push", "ask"),
        ("g\\it push", "ask"),
        ("$RM x", "deny"),
        ("make > .env", "deny"),
        ("make > $x", "deny"),
    ],
)
def test_a_job_that_trusts_its_sandbox_runs_what_no_rule_mentions(command, effect):
    decision = evaluate(TRUSTING, Request("Bash", {"command": command}, SETTING))
    assert decision.effect == effect
    assert ("sandbox" in decision.reason) == (effect == "allow")
    closed = TRUSTING.restricted("reviewer", [Rule("allow", "Bash(ls *)")])
    assert evaluate(closed, Request("Bash", {"command": command}, SETTING)).effect == "deny"


def test_tools_outside_the_sandbox_are_not_trusted():
    for tool in ("Edit", "Write", "WebFetch", "own"):
        given = {"file_path": "a.py", "url": "https://example.com"}
        assert evaluate(TRUSTING, Request(tool, given, SETTING)).effect == "deny"
    assert evaluate(TRUSTING, Request("Bash", {"command": "ls -l"}, SETTING)).reason == ""


def test_a_remembered_answer_for_one_part_answers_for_no_other():
    rules = ["ask Bash(rm *)", "allow Bash(ls *)", "remembered Bash(rm x)"]
    assert bash(rules, "ls && rm x").effect == "allow"
    assert bash(rules, "ls && rm x && rm y").effect == "ask"


def test_a_part_that_nothing_allows_denies_the_whole_though_another_asks():
    decision = bash(["ask Bash(rm *)"], "rm x && curl y")
    assert decision.effect == "deny"
    assert decision.explain() == "denied: no permission rule of this job allows 'curl y'"


def test_an_allowed_script_has_a_matched_rule_for_each_part_and_each_file_it_writes():
    decision = bash(
        ["allow Bash(echo *)", "allow Bash(ls)", "allow Edit(*.txt)"], "ls; echo b > out.txt"
    )
    assert decision.effect == "allow"
    assert [(each.rule.text, each.matched) for each in decision.matched_rules] == [
        ("Bash(ls)", "ls"),
        ("Bash(echo *)", "echo b"),
        ("Edit(*.txt)", "/w/out.txt"),
    ]


def test_a_redirect_needs_an_edit_rule_and_bash_alone_is_enough():
    assert bash(["allow Bash(echo *)"], "echo b > out.txt").effect == "deny"
    assert bash(["allow Bash"], "echo b > out.txt").effect == "allow"
    assert bash(["allow Bash", "deny Edit(out.txt)"], "echo b > out.txt").effect == "deny"
    assert bash(["allow Bash", "ask Edit"], "echo b > out.txt").effect == "ask"
    assert bash(["allow Bash(echo *)", "allow Write(out.txt)"], "echo b > out.txt").effect == "deny"


def test_a_file_that_a_command_reads_from_can_be_denied():
    assert bash(["allow Bash(cat *)"], "cat < .env").effect == "allow"
    assert bash(["allow Bash(cat *)", "deny Read(.env)"], "cat < .env").effect == "deny"
    assert bash(["allow Bash", "ask Read(.env)"], "cat < .env").effect == "ask"


def test_a_target_known_only_at_run_time_is_allowed_by_bash_alone():
    assert bash(["allow Bash(**)", "allow Edit"], 'echo b > "$F"').effect == "deny"
    assert (
        bash(["allow Bash(**)", "allow Edit", "ask Bash(:unanalyzable)"], 'echo b > "$F"').effect
        == "ask"
    )
    assert bash(["allow Bash"], 'echo b > "$F"').effect == "allow"


@pytest.mark.parametrize("command", ['echo b > "$F"', "cd src; echo b > a.py", "cat <> $F"])
@pytest.mark.parametrize("default", ["ask", "deny"])
def test_a_target_that_may_be_one_a_rule_denies_is_allowed_by_nothing(command, default):
    rules = ["allow Bash", "allow Edit", "remembered Bash", "deny Edit(.env)"]
    decision = bash(rules, command, default=default)
    assert (decision.effect, decision.matched_rules) == (default, ())
    assert decision.explain().endswith(
        "where the command writes is known only when it runs, and the rule deny 'Edit(.env)' may be "
        "about that file"
    )
    assert bash(rules[:3], command).effect == "allow"
    assert bash([*rules[:3], "deny Read(.env)"], 'echo b > "$F"').effect == "allow"
    assert bash([*rules[:3], "deny Edit(//**)"], command, default=default).effect == "deny"
    assert bash([*rules[:3], "deny Edit"], command, default=default).rule == "Edit"


def test_a_target_that_may_be_one_a_rule_asks_about_is_asked_about():
    decision = bash(["allow Bash", "ask Edit(.env)"], 'echo b > "$F"')
    assert decision.explain() == (
        "asked by the rule ask 'Edit(.env)': where the command writes is known only when it runs"
    )
    assert bash(["remembered Bash", "ask Edit(.env)"], 'echo b > "$F"').effect == "allow"
    assert bash(["allow Bash", "ask Edit(.env)"], "echo b > out.txt").effect == "allow"


def test_a_source_that_may_be_one_a_rule_denies_is_allowed_by_nothing():
    rules = ["allow Bash(cat *)", "allow Bash(cd *)", "allow Read", "deny Read(.env)"]
    assert bash(rules, "cat < out.txt").effect == "allow"
    assert bash(rules, 'cat < "$F"', default="ask").explain() == (
        "asked: where the command reads is known only when it runs, and the rule deny 'Read(.env)' "
        "may be about that file"
    )
    assert bash(rules, "cd src; cat < a.py").effect == "deny"
    assert bash(rules, "cd src; cat < .env").rule == "Read(.env)"
    assert bash(rules[:3], 'cat < "$F"').effect == "allow"


def test_a_target_before_a_cd_keeps_its_place():
    rules = ["allow Bash(*)", "allow Edit(src/**)", "deny Edit(.env)"]
    assert bash(rules, "echo b > src/a.py; cd src").effect == "allow"
    assert bash(rules, "echo b > .env; cd src").rule == "Edit(.env)"
    assert bash(rules, "cd src; echo b > .env").rule == "Edit(.env)"


@pytest.mark.parametrize("command", ["$cmd x", "eval $x", "echo 'never closed"])
def test_no_pattern_allows_a_command_that_hides_what_it_runs(command):
    hidden = bash(["allow Bash(**)", "remembered Bash(**)", "allow Edit"], command)
    assert hidden.effect == "deny"
    assert "hides" in hidden.explain()
    assert bash(["allow Bash(**)", "ask Bash(:unanalyzable)"], command).effect == "ask"
    assert bash(["allow Bash(:unanalyzable)"], command).effect == "deny"
    assert bash(["allow Bash", "deny Bash(:unanalyzable)"], command).effect == "deny"
    assert bash(["allow Bash"], command).effect == "allow"
    assert bash(["allow Bash(*)"], command).effect == "allow"


def test_a_command_that_runs_its_arguments_is_allowed_by_the_very_same_words_alone():
    assert bash(["allow Bash(find * -delete)"], "find a -delete").effect == "deny"
    assert bash(["allow Bash(find a -delete)"], "find a -delete").effect == "allow"
    assert (
        bash(["allow Bash(find -name '*.o' -delete)"], "find -name '*.o' -delete").effect == "allow"
    )
    assert bash(["allow Bash(find -name '*.o' -delete)"], "find -name *.o -delete").effect == "deny"
    assert bash(["allow Bash(find a -delete)"], "find a -delete; $cmd").effect == "deny"


def test_a_plain_command_is_analyzable():
    assert bash(["allow Bash(**)", "ask Bash(:unanalyzable)"], "ls -la").effect == "allow"


@pytest.mark.parametrize("command", ["", "  ", "# nothing", None, 7, ["ls"]])
def test_no_pattern_allows_a_command_that_is_none(command):
    assert bash(["allow Bash(**)"], command).effect == "deny"


def test_link_and_target_must_both_be_allowed_and_either_is_denied():
    assert read(["allow Read(link)"], "link").effect == "deny"
    assert read(["allow Read(//etc/*)"], "link").effect == "deny"
    assert read(["allow Read(link)", "allow Read(//etc/*)"], "link").effect == "deny"
    assert read(["allow Read", "deny Read(link)"], "link").effect == "deny"
    assert read(["allow Read", "deny Read(//etc)"], "link").effect == "deny"
    assert read(["allow Read"], "link").effect == "allow"


def test_no_pattern_allows_an_unresolved_path():
    assert read(["allow Read(**)"], "gone").effect == "deny"
    assert "is not known" in read(["allow Read(**)"], "gone").explain()
    assert read(["allow Read", "deny Read(gone)"], "x/../gone").effect == "deny"
    assert read(["allow Read", "ask Read(~/.ssh)"], "~/.ssh/id").effect == "ask"


def test_a_search_is_allowed_where_anything_may_be_read_and_denied_at_a_denied_root():
    rules = ["allow Read(*.py)"]
    assert read(rules, "src", "Grep").effect == "allow"
    assert read([*rules, "deny Read(src/**)"], "src", "Grep").effect == "deny"
    assert read([*rules, "deny Read(src/)"], "src", "Glob").effect == "deny"
    assert read(["allow Edit(*.py)"], "src", "Grep").effect == "deny"


def test_a_search_finds_only_files_that_may_be_read():
    rules = policy("allow Read(*.py)", "deny Read(.env)")
    effects = [
        may_touch(rules, "Grep", PLACES[name], SETTING).effect
        for name in ("a.py", ".env", "out.txt")
    ]
    assert effects == ["allow", "deny", "deny"]


def test_a_remembered_file_opens_no_search_that_a_rule_asks_about():
    assert read(["ask Grep", "remembered Read(src/a.py)"], ".", "Grep").effect == "ask"


def test_long_outputs_may_be_read_where_anything_may_but_not_when_denied():
    assert read(["allow Read(src/**)"], "/out/1").effect == "allow"
    assert read(["allow Read(src/**)", "deny Read(//out)"], "/out/1").effect == "deny"
    assert read(["allow Edit"], "/out/1").effect == "deny"
    assert read(["allow Edit(src/**)"], "/out/1", "Write").effect == "deny"


def test_a_rule_that_cannot_be_read_allows_nothing_and_denies_what_it_names():
    assert bash(["allow Bash(", "allow Bash()"], "ls").effect == "deny"
    assert bash(["allow Bash", "deny Bash("], "ls").effect == "deny"
    assert read(["allow Read", "deny Read(!a.py)"], "a.py").effect == "deny"


@pytest.mark.parametrize(
    ("rule", "url", "effect"),
    [
        ("allow WebFetch(domain:example.com)", "https://Example.COM.:8443/a?b#c", "allow"),
        ("allow WebFetch(domain:example.com)", "https://a.example.com/", "deny"),
        ("allow WebFetch(domain:*.example.com)", "https://a.example.com/", "allow"),
        ("allow WebFetch(domain:*.example.com)", "https://example.com/", "deny"),
        ("allow WebFetch(domain:*.example.com)", "https://badexample.com/", "deny"),
        ("allow WebFetch(domain:example.com)", "https://example.com@evil.org/", "deny"),
        ("allow WebFetch(domain:example.com)", "https://evil.org\\@example.com/", "deny"),
        ("allow WebFetch(domain:example.com)", "https://example.com%2f@evil.org/", "deny"),
        ("allow WebFetch(domain:example.com)", "https://evil.org#@example.com/", "deny"),
        ("allow WebFetch(domain:example.com)", "https://exam\nple.com/", "deny"),
        ("allow WebFetch(domain:example.com)", "https://ｅxample.com/", "deny"),
        ("allow WebFetch(domain:example.com)", "file://example.com/etc", "deny"),
        ("allow WebFetch(domain:example.com)", "example.com", "deny"),
        ("allow WebFetch", "anything", "allow"),
    ],
)
def test_a_host_is_allowed_when_every_reader_would_go_there(rule, url, effect):
    assert evaluate(policy(rule), Request("WebFetch", {"url": url})).effect == effect


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.org/",
        "https://EVIL.org.:1/",
        "https://ok.com@evil.org/",
        "https://evil.org\\@ok.com/",
        "https://evil.org@ok.com/",
        "https:/\\evil.org/",
        "https://ev\til.org/",
        "https://%65vil.org/",
        "https://ｅvil.org/",
    ],
)
def test_a_host_is_denied_when_some_reader_would_go_there(url):
    rules = policy("allow WebFetch", "deny WebFetch(domain:evil.org)")
    assert evaluate(rules, Request("WebFetch", {"url": url})).effect == "deny"


def test_call_of_more_commands_than_anyone_reads_is_denied() -> None:
    command = "; ".join(f"ls {number}" for number in range(MOST_ACCESSES + 1))
    decision = evaluate(Policy((Rule("allow", "Bash"),)), Request("Bash", {"command": command}))
    assert decision.effect == "deny"
    assert "split it" in decision.explain()
