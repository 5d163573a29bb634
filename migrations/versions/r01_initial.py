"""The schema of Runner 0.1.0: tables, views for questions in SQL, and on Postgres the search index.

The views have the same columns, types and values on SQLite and on Postgres (docs/audit.md). Times are
seconds since the epoch, beside them text in UTC; booleans are 1 or 0; JSON is text.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "r01"
down_revision = None

_TYPES: dict[str, Any] = {
    "text": sa.Text,
    "int": sa.Integer,
    "long": sa.BigInteger,
    "float": sa.Float,
    "bool": sa.Boolean,
    "json": sa.JSON,
    "bytes": sa.LargeBinary,
}


def upgrade() -> None:
    _create_jobs()
    _create_runs()
    _create_conversations()
    _create_calls()
    connection = op.get_bind()
    views = _Views(connection.dialect.name == "sqlite")
    names = ("runs", "turns", "messages", "tool_calls", "decisions", "costs", "events", "hooks")
    for name in names:
        connection.exec_driver_sql(f"CREATE VIEW v_{name} AS {getattr(views, name)()}")
    if connection.dialect.name == "postgresql":
        for statement in _SEARCH_INDEX:
            op.execute(statement)


def _create(table: str, columns: str, *others: Any, **options: Any) -> None:
    """Create a table of columns, and of constraints and indexes.

    Between semicolons are a type and its columns: ``int! a b`` are the primary key, ``text? c`` can be
    null, ``text='' d`` has a default, ``text e>runs.id`` refers to a column.
    """
    parts = []
    for group in columns.split(";"):
        declared, *names = group.split()
        kind, is_default, default = declared.partition("=")
        for name, _, reference in (each.partition(">") for each in names):
            column = sa.Column(
                name,
                _TYPES[kind.rstrip("!?")],
                *([sa.ForeignKey(reference)] if reference else []),
                primary_key=kind.endswith("!"),
                nullable=kind.endswith("?"),
                server_default=default.strip("'") if is_default else None,
            )
            parts.append(column)
    op.create_table(table, *parts, *others, **options)


def _index(*columns: str, where: str) -> sa.Index:
    return sa.Index(None, *columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _one_of(column: str, values: str, name: str | None = None) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} IN {tuple(values.split())}", name=name or column)


# Large columns come last: on SQLite, reading a column behind a large one reads all of that.


def _create_jobs() -> None:
    _create(
        "jobs",
        "text! id; text? key; float created_at; int='1' rules_snapshot; text name source spec_digest;"
        "text? workspace_id; text spec_text; json spec",
        sa.UniqueConstraint("key"),
        _index("rules_snapshot", where="rules_snapshot > 1"),
    )
    _create(
        "purses",
        "text! job_id>jobs.id; float? budget_usd; long? budget_tokens;"
        "long='0' spent_tokens spent_cost reserved_tokens reserved_cost",
    )
    _create(
        "job_events",
        "text! job_id>jobs.id; int! number; float at; text type; json data",
        sqlite_with_rowid=False,
    )
    _create(
        "prices",
        "text! model; int! fast; long! above; long? up_to;"
        "float input cache_write_5m cache_write_1h cache_read output us_inference",
    )


def _create_runs() -> None:
    _create(
        "runs",
        "text! id; text job_id>jobs.id; text? fresh_of>runs.id; text item_key state;"
        "text='' reason detail; float created_at; float? started_at ended_at due_at rung_at deadline;"
        "text? worker_id last_worker_id workspace_path workspace_id;"
        "int='0' attempt lost_leases bugs depth; bool='0' pause_requested; int max_turns;"
        "long token_ceiling; float? cost_ceiling_usd working_time;"
        "int='0' revision turns denials answer_count event_count message_count queued_count"
        " compaction_count; long='0' input_tokens cache_read_tokens cache_creation_tokens"
        " output_tokens charged_tokens; text? model start_tree fork_of parent_run root_run agent_type;"
        "int? fork_turn parent_message parent_position child_number; json progress",
        _one_of("state", "queued running waiting succeeded failed cancelled stopped"),
        sa.CheckConstraint("(state = 'running') = (worker_id IS NOT NULL)", name="held"),
        sa.CheckConstraint("(state = 'queued') = (due_at IS NOT NULL)", name="due"),
        sa.Index(None, "job_id", "state"),
        sa.Index(None, "state", "due_at"),
        sa.Index(None, "worker_id"),
        _index("root_run", where="root_run IS NOT NULL"),
        _index("state", "parent_run", where="parent_run IS NOT NULL"),
    )
    _create("run_items", "text! run_id>runs.id; text? commit_message; json item")
    _create(
        "run_workspaces",
        "text! run_id>runs.id; text store_id path; text? branch start_commit commit_id;"
        "float created_at",
    )
    _create(
        "run_instructions", "text! run_id>runs.id; int! position; int size; text path sha256 text"
    )
    _create(
        "permission_rules",
        "text! job_id>jobs.id; int! position; text? run_id>runs.id; text effect rule;"
        "text='' why author; text='job' origin; int='1' added_in; int? revoked_in;"
        "text? revoked_by; float? created_at revoked_at",
        _one_of("effect", "allow ask deny"),
    )
    _create(
        "workers",
        "text! id; text host_id hostname; int pid slots; float started_at lease_expires_at;"
        "float? ended_at",
        sa.Index(None, "ended_at"),
    )


def _create_conversations() -> None:
    _create(
        "blocks",
        "text! run_id>runs.id; int! message position; text role type; int turn; float created_at;"
        "json content",
        _one_of("role", "user assistant"),
    )
    _create(
        "queued_messages",
        "int! id; text run_id>runs.id; float created_at; int? delivered_message; text text",
        sa.Index(None, "run_id"),
    )
    _create(
        "compactions",
        "text! run_id>runs.id; int! number; text kind;"
        "int first_message last_message turn first_sent_in; int? made_by_call;"
        "long tokens_before tokens_after; float created_at; json text clips",
        _one_of("kind", "clip summary prune"),
    )
    _create(
        "events",
        "text! run_id>runs.id; int! number; float at; int attempt; text type; json data",
        _index("at", where="type = 'limit_reached'"),
        sqlite_with_rowid=False,
    )
    _create(
        "verifications",
        "text! run_id>runs.id; int! number; int turn attempt; float started_at;"
        "float? ended_at duration; text? tree outcome command; long? size; json? content;"
        "bytes? compressed",
    )
    _create(
        "hook_runs",
        "text! run_id>runs.id; int! number; int hook turn attempt;"
        "int? message position exit_code; text event name; float started_at;"
        "float? ended_at duration; bool='0' stops; text? outcome decision tree_before tree_after;"
        "text='' reason context output errors",
        _one_of("event", "RunStart PreToolUse PostToolUse TurnEnd RunEnd"),
        _one_of("decision", "allow ask deny block"),
    )


def _create_calls() -> None:
    _create(
        "tool_calls",
        "text! run_id>runs.id; int! message position; int turn; text tool_use_id name;"
        "text? decision rule matched decision_reason denial outcome;"
        "int? decision_snapshot rule_position started_attempt; float? started_at ended_at duration;"
        "bool='0' interrupted asked_again; text? tree_before tree_after; json? updated_input",
        sqlite_with_rowid=False,
    )
    _create(
        "tool_outputs", "text! run_id>runs.id; int! message position; long size; bytes compressed"
    )
    _create(
        "approvals",
        "text! run_id>runs.id; int! message position; text job_id>jobs.id; text id;"
        "int turn checked_snapshot; int? remembered; bool='0' by_hook; float asked_at;"
        "float? expires_at notified_at answered_at; text? answer answered_by answered_via;"
        "text='' reason; text tool input_digest summary group_key suggested_rule; json setting;"
        "json? edited_input",
        _one_of("answer", "approved denied expired cancelled"),
        _one_of("answered_via", "person rule timeout cancel end", name="via"),
        sa.CheckConstraint("(answer IS NULL) = (answered_at IS NULL)", name="answered"),
        sa.UniqueConstraint("id"),
        _index("job_id", "checked_snapshot", where="answer IS NULL"),
        _index("expires_at", where="answer IS NULL"),
        _index("asked_at", where="answer IS NULL AND notified_at IS NULL"),
    )
    _create(
        "model_calls",
        "text! run_id>runs.id; int! number; int attempt turn max_tokens; text='turn' purpose;"
        "text model; float started_at; float? ended_at latency; text? request_id stop_reason error;"
        "bool? hour_cache; long worst_case;"
        "long? input_tokens cache_read_tokens cache_creation_tokens output_tokens charged_tokens;"
        "json? cut",
        sqlite_with_rowid=False,
    )


_TOKENS = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
# Which tree of sub-agents a row belongs to, and the label of a run and of a call in it.
_TREE = "coalesce(r.root_run, r.id) AS root_run, r.parent_run, r.depth, r.agent_type"
_RUN_LABEL = "CASE WHEN r.depth > 0 THEN substr(r.id, length(r.root_run) + 2) ELSE '' END"
_OF_RUN = f"{_TREE}, {_RUN_LABEL} AS label"
_CALL_LABEL = """CASE WHEN r.depth > 0 THEN substr(r.id, length(r.root_run) + 2) || '.' ELSE '' END
    || CAST((SELECT count(*) FROM tool_calls n WHERE n.run_id = c.run_id
        AND (n.message, n.position) <= (c.message, c.position)) AS TEXT)"""
_OF_CALL = f"{_TREE}, {_CALL_LABEL} AS label"
_OF_NO_RUN = """CAST(NULL AS TEXT) AS root_run, CAST(NULL AS TEXT) AS parent_run,
    CAST(NULL AS INTEGER) AS depth, CAST(NULL AS TEXT) AS agent_type, CAST(NULL AS TEXT) AS label"""


class _Views:
    """The queries of the views, in the SQL of SQLite or of Postgres."""

    def __init__(self, sqlite: bool) -> None:
        self._sqlite = sqlite

    def _time(self, seconds: str, name: str) -> str:
        """Seconds since the epoch, and as text such as ``2026-11-22T22:00:00Z``, rounded down."""
        iso = f"strftime('%Y-%m-%dT%H:%M:%SZ', CAST({seconds} AS INTEGER), 'unixepoch')"
        if not self._sqlite:
            utc = f"to_timestamp(floor({seconds})) AT TIME ZONE 'UTC'"
            iso = f"""to_char({utc}, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
        return f"{seconds} AS {name}, {iso} AS {name}_text"

    def _readable(self, json: str) -> str:
        """JSON text whose strings both databases can extract. Neither extracts a string with a NUL or a
        lone surrogate: such text is rewritten so that its NULs and surrogates come out as the six
        characters of their escape. The first step keeps an escaped backslash from starting one."""
        steps = json if self._sqlite else f"({json})::text"
        is_odd = rf"{json} GLOB '*\u[0d]*'" if self._sqlite else rf"strpos({steps}, '\u') > 0"
        # The backslashes of SQL: Postgres takes them as they are in a standard string.
        for old, new in (("\\\\", "\\u005c"), ("\\u0000", "\\u005cu0000"), ("\\ud", "\\u005cud")):
            steps = f"replace({steps}, '{old}', '{new}')"
        steps = steps if self._sqlite else f"({steps})::json"
        return f"CASE WHEN {is_odd} THEN {steps} ELSE {json} END"

    def _at(self, *path: str) -> str:
        return f"'$.{'.'.join(path)}'" if self._sqlite else f"'{{{','.join(path)}}}'"

    def _json(self, json: str, *path: str) -> str:
        """The value at a path in JSON, as JSON text."""
        at = self._at(*path)
        return f"({json}) -> {at}" if self._sqlite else f"(({json})::json #> {at})::text"

    def _text(self, json: str, *path: str) -> str:
        """The value at a path in JSON: a string as it is, anything else as JSON text."""
        at = self._at(*path)
        extracted = f"CAST(json_extract({json}, {at}) AS TEXT)"
        return extracted if self._sqlite else f"({json})::json #>> {at}"

    def _string(self, json: str, *path: str) -> str:
        """The string at a path in JSON, NULL for any other value."""
        at = self._at(*path)
        if self._sqlite:
            return f"CASE WHEN json_type({json}, {at}) = 'text' THEN json_extract({json}, {at}) END"
        is_text = f"json_typeof(({json})::json #> {at}) = 'string'"
        return f"CASE WHEN {is_text} THEN ({json})::json #>> {at} END"

    def _flag(self, condition: str) -> str:
        return f"CASE WHEN {condition} THEN 1 ELSE 0 END"

    def _plain(self, json: str) -> str:
        return json if self._sqlite else f"({json})::text"

    def _call_id(self, call: str) -> str:
        """The same as ``runner.store.ids.call_id``."""
        place = f"{call}.turn || '_' || ({call}.position + 1)"
        return f"replace({call}.run_id, 'run_', 'call_') || '_' || {place}"

    def _is_its_own(self, row: str) -> str:
        """True for a row of the run's own turns: false for a turn that a fork copied."""
        return f"(r.fork_turn IS NULL OR {row}.turn > r.fork_turn)"

    def runs(self) -> str:
        spec = f"SELECT {self._readable('j.spec')} AS readable FROM jobs j WHERE j.id = r.job_id"
        own = f"(SELECT {self._string('readable', 'model')} FROM ({spec}) AS s)"
        agents = "json_each(s.readable, '$.agents')"
        if not self._sqlite:
            agents = "json_array_elements(s.readable::json -> 'agents')"
        name, model = self._string("a.value", "name"), self._string("a.value", "model")
        of_type = f"SELECT {model} FROM ({spec}) AS s, {agents} AS a WHERE {name} = r.agent_type"
        of_type = f"CASE WHEN r.agent_type IS NOT NULL THEN ({of_type}) END"
        parent_call = f"""(SELECT {self._call_id("p")} FROM tool_calls p WHERE p.run_id = r.parent_run
            AND p.message = r.parent_message AND p.position = r.parent_position)"""
        return f"""SELECT r.id AS run_id, r.job_id, jobs.name AS job, r.item_key AS item, r.state,
            r.reason, r.detail, coalesce(r.model, {of_type}, {own}) AS model,
            {self._time("r.created_at", "created_at")}, {self._time("r.started_at", "started_at")},
            {self._time("r.ended_at", "ended_at")}, r.ended_at - r.started_at AS seconds,
            r.attempt AS attempts, r.turns, r.message_count AS messages, r.denials,
            r.input_tokens, r.cache_read_tokens, r.cache_creation_tokens, r.output_tokens,
            r.max_turns, r.fork_of, r.fork_turn, r.fresh_of,
            w.path AS workspace, w.branch, w.commit_id,
            {_OF_RUN}, {parent_call} AS parent_call
        FROM runs r JOIN jobs ON jobs.id = r.job_id LEFT JOIN run_workspaces w ON w.run_id = r.id"""

    def turns(self) -> str:
        none = ", ".join(f"0 AS {name}" for name in _TOKENS)
        sums = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in _TOKENS)
        return f"""SELECT t.run_id, r.job_id, r.item_key AS item, t.turn,
            {self._time("t.started_at", "started_at")}, {self._time("t.ended_at", "ended_at")},
            t.ended_at - t.started_at AS seconds, t.model_calls, t.tool_calls, t.failed_calls,
            t.denied_calls, t.stop_reason, {", ".join(f"t.{name}" for name in _TOKENS)}, {_OF_RUN}
        FROM (
            SELECT run_id, turn, min(started_at) AS started_at, max(ended_at) AS ended_at,
                CAST(sum(model_call) AS BIGINT) AS model_calls,
                CAST(sum(tool_call) AS BIGINT) AS tool_calls,
                CAST(sum(failed) AS BIGINT) AS failed_calls,
                CAST(sum(denied) AS BIGINT) AS denied_calls,
                max(stop_reason) AS stop_reason, {sums}
            FROM (
                SELECT run_id, turn, started_at, ended_at, 1 AS model_call, 0 AS tool_call,
                    0 AS failed, 0 AS denied, stop_reason, {", ".join(_TOKENS)}
                FROM model_calls WHERE purpose = 'turn'
                UNION ALL
                SELECT run_id, turn, started_at, ended_at, 0, 1,
                    {self._flag("outcome NOT IN ('succeeded', 'denied')")},
                    {self._flag("outcome = 'denied'")}, NULL, {none}
                FROM tool_calls
            ) AS done GROUP BY run_id, turn
        ) AS t JOIN runs r ON r.id = t.run_id WHERE {self._is_its_own("t")}"""

    def messages(self) -> str:
        said = self._readable("b.content")

        # What a fork copies: all up to the end of its turn, less messages said to the other run after it.
        copied = """r.fork_turn IS NOT NULL AND (
            (b.message = 0 AND b.position = 0) OR b.turn < r.fork_turn
            OR (b.turn = r.fork_turn AND (b.role = 'assistant' OR b.type = 'tool_result')))"""
        # A child's conversation begins with its parent's; only the last of these blocks is its own.
        from_parent = """(r.depth > 0 AND b.turn = 0 AND EXISTS (SELECT 1 FROM blocks later
            WHERE later.run_id = b.run_id AND later.turn = 0
                AND (later.message, later.position) > (b.message, b.position)))"""
        text = partial(self._text, said)
        return f"""SELECT b.run_id, r.job_id, r.item_key AS item, b.message, b.position, b.turn,
            b.role, b.type, {self._time("b.created_at", "at")},
            CASE b.type WHEN 'text' THEN {text("text")} WHEN 'thinking' THEN {text("thinking")}
                WHEN 'tool_use' THEN {self._json(said, "input")}
                WHEN 'tool_result' THEN {text("content")} END AS text,
            CASE b.type WHEN 'tool_use' THEN {text("name")} END AS tool,
            CASE b.type WHEN 'tool_use' THEN {text("id")}
                WHEN 'tool_result' THEN {text("tool_use_id")} END AS tool_use_id,
            {self._plain("b.content")} AS content, {self._flag(f"{copied} OR {from_parent}")} AS copied,
            {_OF_RUN}
        FROM blocks b JOIN runs r ON r.id = b.run_id"""

    def _of_use(self, value: str) -> str:
        """A value of the block that asked for call ``c``: the tool_use block whose index among the
        tool_use blocks of its message is the call's position."""
        return f"""(SELECT {value} FROM blocks u
            WHERE u.run_id = c.run_id AND u.message = c.message AND u.type = 'tool_use'
                AND c.position = (SELECT count(*) FROM blocks p
                    WHERE p.run_id = u.run_id AND p.message = u.message
                        AND p.position < u.position AND p.type = 'tool_use'))"""

    def tool_calls(self) -> str:
        said = self._readable("u.content")
        paths = [self._string(said, "input", name) for name in ("file_path", "path")]
        output = f"""(SELECT {self._text(said, "content")} FROM blocks u
            WHERE u.run_id = c.run_id AND u.message = c.message + 1 AND u.position = c.position
                AND u.type = 'tool_result')"""
        return f"""SELECT c.run_id, r.job_id, r.item_key AS item, {self._call_id("c")} AS call_id,
            c.message, c.position, c.turn, c.name AS tool, c.tool_use_id,
            {self._of_use(self._json(said, "input"))} AS input,
            {self._of_use(self._string(said, "input", "command"))} AS command,
            {self._of_use(f"coalesce({', '.join(paths)})")} AS path,
            c.decision, c.rule, c.outcome, {self._flag("c.interrupted")} AS interrupted,
            {self._time("c.started_at", "started_at")}, {self._time("c.ended_at", "ended_at")},
            c.duration AS seconds, {output} AS output,
            (SELECT o.size FROM tool_outputs o WHERE o.run_id = c.run_id AND o.message = c.message
                AND o.position = c.position) AS whole_output_bytes,
            c.tree_before, c.tree_after,
            {_OF_CALL}, {self._plain("c.updated_input")} AS updated_input
        FROM tool_calls c JOIN runs r ON r.id = c.run_id WHERE {self._is_its_own("c")}"""

    def decisions(self) -> str:
        asked = """(SELECT b.created_at FROM blocks b WHERE b.run_id = c.run_id
            AND b.message = c.message AND b.position = 0)"""
        input_now = self._of_use(self._json(self._readable("u.content"), "input"))
        return f"""SELECT c.run_id, r.job_id, r.item_key AS item, {self._call_id("c")} AS call_id,
            c.message, c.position, c.turn, c.name AS tool, {input_now} AS input,
            {self._time(asked, "at")}, c.decision, c.rule, p.effect AS rule_effect,
            p.origin AS rule_origin, p.author AS rule_author, p.why AS rule_why,
            c.decision_snapshot AS rules_snapshot, c.matched, c.decision_reason, c.denial,
            a.id AS approval_id, {self._time("a.asked_at", "asked_at")}, a.answer,
            {self._time("a.answered_at", "answered_at")}, a.answered_at - a.asked_at AS waited_seconds,
            a.answered_by, a.answered_via, a.reason AS answer_reason,
            {self._plain("a.edited_input")} AS edited_input, c.outcome,
            {_OF_CALL}, {self._plain("c.updated_input")} AS updated_input,
            {self._flag("a.by_hook")} AS asked_by_hook
        FROM tool_calls c JOIN runs r ON r.id = c.run_id
        LEFT JOIN permission_rules p ON p.job_id = r.job_id AND p.position = c.rule_position
        LEFT JOIN approvals a ON a.run_id = c.run_id AND a.message = c.message
            AND a.position = c.position
        WHERE c.decision IS NOT NULL AND {self._is_its_own("c")}"""

    def events(self) -> str:
        data = self._readable("e.data")
        values = ", ".join(
            f"nullif({self._json(data, name)}, 'null') AS {name}_value" for name in ("old", "new")
        )

        def select(columns: str, tree: str, source: str) -> str:
            return f"""SELECT {columns}, e.number, {self._time("e.at", "at")}, e.type,
                {self._text(data, "by")} AS who, {self._text(data, "why")} AS why,
                {values},
                {self._plain("e.data")} AS data, {tree}
            FROM {source}"""

        of_run = select(
            "r.job_id, e.run_id, r.item_key AS item, e.attempt",
            _OF_RUN,
            "events e JOIN runs r ON r.id = e.run_id",
        )
        no_run = "CAST(NULL AS TEXT), CAST(NULL AS TEXT), CAST(NULL AS INTEGER)"
        return f"{of_run} UNION ALL {select(f'e.job_id, {no_run}', _OF_NO_RUN, 'job_events e')}"

    def hooks(self) -> str:
        label = f"CASE WHEN c.run_id IS NULL THEN {_RUN_LABEL} ELSE {_CALL_LABEL} END AS label"
        return f"""SELECT h.run_id, r.job_id, r.item_key AS item, h.number, h.event, h.name, h.turn,
            {self._call_id("c")} AS call_id, c.name AS tool, h.attempt,
            {self._time("h.started_at", "started_at")}, {self._time("h.ended_at", "ended_at")},
            h.duration AS seconds, h.outcome, h.exit_code, h.decision, h.reason, h.context,
            {self._flag("h.stops")} AS stops, h.output, h.errors, h.tree_before, h.tree_after,
            {_TREE}, {label}
        FROM hook_runs h JOIN runs r ON r.id = h.run_id
        LEFT JOIN tool_calls c ON c.run_id = h.run_id AND c.message = h.message
            AND c.position = h.position"""

    def costs(self) -> str:
        """Return the view of each call's cost, by the rules of ``runner.core.prices``."""
        tokens = ", ".join(f"c.{name}" for name in _TOKENS)
        used = {name: f"coalesce(k.{name}, 0)" for name in _TOKENS}
        write = "CASE WHEN k.hour_cache = 1 THEN p.cache_write_1h ELSE p.cache_write_5m END"
        greatest = "max" if self._sqlite else "greatest"
        factor = "(CASE WHEN k.us_only = 1 THEN p.us_inference ELSE 1.0 END) / 1000000.0"
        usd = f"""(p.input * {used["input_tokens"]} + {write} * {used["cache_creation_tokens"]}
            + p.cache_read * {used["cache_read_tokens"]}
            + p.output * {used["output_tokens"]}) * {factor}"""
        bound = f"""({greatest}(p.input, {write}, p.cache_read) * (k.worst_case - k.max_tokens)
            + p.output * k.max_tokens) * {factor}"""
        nothing = f"k.scripted = 1 OR (k.unknown = 0 AND {' + '.join(used.values())} = 0)"
        return f"""WITH terms AS MATERIALIZED ({self._terms()}), calls AS (
            SELECT c.run_id, r.job_id, r.item_key AS item, c.number, c.turn, c.purpose, c.model,
                c.started_at, c.latency, {tokens}, c.worst_case, c.max_tokens, t.scripted, t.us_only,
                {self._flag("c.input_tokens IS NULL AND c.charged_tokens > 0")} AS unknown,
                CASE WHEN c.hour_cache IS NULL THEN t.hour_cache
                    ELSE {self._flag("c.hour_cache")} END AS hour_cache,
                CASE WHEN c.purpose = 'summary' THEN t.fast_summary ELSE t.fast END AS fast,
                coalesce(c.input_tokens + c.cache_read_tokens + c.cache_creation_tokens,
                    c.worst_case - c.max_tokens) AS prompt,
                CASE WHEN EXISTS (SELECT 1 FROM prices q WHERE q.model = c.model) THEN c.model
                    ELSE {self._without_release("c.model")} END AS priced_as,
                {_OF_RUN}
            FROM model_calls c JOIN runs r ON r.id = c.run_id JOIN terms t ON t.job_id = r.job_id
            WHERE c.charged_tokens IS NOT NULL
        )
        SELECT k.run_id, k.job_id, k.item, k.number, k.turn, k.purpose, k.model,
            {self._time("k.started_at", "at")}, k.latency AS seconds,
            {", ".join(f"k.{name}" for name in _TOKENS)},
            CASE WHEN {nothing} THEN 0.0 WHEN k.unknown = 0 THEN {usd} END AS usd,
            CASE WHEN k.unknown = 1 AND k.scripted = 0 THEN {bound} END AS usd_at_most,
            CASE WHEN k.scripted = 1 THEN 'scripted' WHEN {nothing} THEN 'usage'
                WHEN p.model IS NULL THEN 'no price' WHEN k.unknown = 1 THEN 'at most'
                ELSE 'usage' END AS basis,
            k.root_run, k.parent_run, k.depth, k.agent_type, k.label
        FROM calls k LEFT JOIN prices p ON p.model = k.priced_as AND p.fast = k.fast
            AND k.prompt > p.above AND (p.up_to IS NULL OR k.prompt <= p.up_to)"""

    def _without_release(self, model: str) -> str:
        """A model's id without the date or ``-latest`` at its end."""
        dated = f"{model} GLOB '*-{'[0-9]' * 8}'" if self._sqlite else f"{model} ~ '-[0-9]{{8}}$'"
        return f"""CASE WHEN {dated} THEN substr({model}, 1, length({model}) - 9)
            WHEN {model} LIKE '%-latest' THEN substr({model}, 1, length({model}) - 7)
            ELSE {model} END"""

    def _terms(self) -> str:
        """Return the billing options of each job. An option in ``extra_body`` replaces the model
        option of the same name."""

        def option(name: str, *inside: str) -> str:
            extra = self._json("o.options", "extra_body", name)
            inner = self._string("o.options", "extra_body", name, *inside)
            own = self._string("o.options", name, *inside)
            return f"CASE WHEN {extra} IS NOT NULL THEN {inner} ELSE {own} END"

        is_fast = f"{option('speed')} = 'fast'"
        return f"""SELECT o.job_id, {self._flag("o.provider = 'scripted'")} AS scripted,
                {self._flag(is_fast)} AS fast,
                {self._flag(f"{is_fast} AND coalesce(o.summary_model, o.model) = o.model")}
                    AS fast_summary,
                {self._flag(f"{option('inference_geo')} = 'us'")} AS us_only,
                {self._flag(f"{option('cache_control', 'ttl')} = '1h'")} AS hour_cache
            FROM (
                SELECT s.job_id, {self._string("s.spec", "provider")} AS provider,
                    {self._string("s.spec", "model")} AS model,
                    {self._string("s.spec", "context", "summary_model")} AS summary_model,
                    coalesce({self._json("s.spec", "model_options")}, '{{}}') AS options
                FROM (SELECT id AS job_id, {self._readable("spec")} AS spec FROM jobs) AS s
            ) AS o"""


# The search index on Postgres (runner.queries.search.postgres). It is derived from the other tables,
# and `runner db reindex` makes it again.
_SEARCH_INDEX = (
    """CREATE TABLE search_runs (
        number integer PRIMARY KEY, job_id text NOT NULL, run_id text NOT NULL, seen bigint NOT NULL,
        message integer NOT NULL, positions text NOT NULL, compactions integer NOT NULL,
        verifications text NOT NULL, UNIQUE (run_id, job_id))""",
    'CREATE TABLE search_words (word text COLLATE "C" PRIMARY KEY)',
    """CREATE FUNCTION search_trigrams(word text) RETURNS text[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ARRAY(SELECT pg_catalog.substr(word, start, 3)
        FROM pg_catalog.generate_series(1, pg_catalog.length(word) - 2) AS start)""",
    """CREATE INDEX ix_search_words_trigrams ON search_words
    USING gin (search_trigrams(word)) WITH (fastupdate = on, gin_pending_list_limit = 1024)""",
    """CREATE TABLE search_documents (
        at double precision NOT NULL, id integer PRIMARY KEY, document integer NOT NULL,
        run integer NOT NULL, message integer NOT NULL, position integer NOT NULL,
        length integer NOT NULL, kind smallint NOT NULL, pairs bytea NOT NULL,
        words tsvector NOT NULL)""",
    "ALTER TABLE search_documents ALTER COLUMN pairs SET STORAGE MAIN",
    "ALTER TABLE search_documents ALTER COLUMN words SET STORAGE EXTERNAL",
    # Statistics about words would be read from many documents, and no plan depends on them.
    "ALTER TABLE search_documents ALTER COLUMN words SET STATISTICS 0",
    "CREATE INDEX ix_search_documents_run ON search_documents (run)",
    """CREATE INDEX ix_search_documents_words ON search_documents
    USING gin (words) WITH (fastupdate = on)""",
)
