"""Views of the record for people who ask it in SQL, and the prices that ``v_costs`` takes.

The views have the same columns, types and values on SQLite and on Postgres (docs/audit.md). Times are
seconds since the epoch, beside them text in UTC; what is true or false is 1 or 0; JSON is text.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "prices",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("fast", sa.Integer(), nullable=False),
        sa.Column("above", sa.BigInteger(), nullable=False),
        sa.Column("up_to", sa.BigInteger()),
        sa.Column("input", sa.Float(), nullable=False),
        sa.Column("cache_write_5m", sa.Float(), nullable=False),
        sa.Column("cache_write_1h", sa.Float(), nullable=False),
        sa.Column("cache_read", sa.Float(), nullable=False),
        sa.Column("output", sa.Float(), nullable=False),
        sa.Column("us_inference", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("model", "fast", "above", name=op.f("pk_prices")),
    )
    connection = op.get_bind()
    views = _Views(connection.dialect.name == "sqlite")
    for name, query in (
        ("v_runs", views.runs()),
        ("v_turns", views.turns()),
        ("v_messages", views.messages()),
        ("v_tool_calls", views.tool_calls()),
        ("v_decisions", views.decisions()),
        ("v_costs", views.costs()),
        ("v_events", views.events()),
    ):
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {query}")


class _Views:
    """The queries of the views, in the words of SQLite or of Postgres."""

    def __init__(self, sqlite: bool) -> None:
        self._sqlite = sqlite

    def _iso(self, seconds: str) -> str:
        """Seconds since the epoch as ``2026-11-22T22:00:00Z``, rounded down."""
        if self._sqlite:
            return f"strftime('%Y-%m-%dT%H:%M:%SZ', CAST({seconds} AS INTEGER), 'unixepoch')"
        utc = f"to_timestamp(floor({seconds})) AT TIME ZONE 'UTC'"
        return f"""to_char({utc}, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""

    def _time(self, seconds: str, name: str) -> str:
        return f"{seconds} AS {name}, {self._iso(seconds)} AS {name}_text"

    def _readable(self, json: str) -> str:
        """JSON text whose strings either database can give. They give none with a NUL or with half a
        surrogate pair: these, and the other surrogates of such a text, come as the six characters that
        stand for them in JSON. First, every backslash is written so that no other begins with it."""
        steps = json if self._sqlite else f"({json})::text"
        is_odd = rf"{json} GLOB '*\u[0d]*'" if self._sqlite else rf"strpos({steps}, '\u') > 0"
        # The backslashes of SQL: Postgres takes them as they are in a standard string.
        for old, new in (("\\\\", "\\u005c"), ("\\u0000", "\\u005cu0000"), ("\\ud", "\\u005cud")):
            steps = f"replace({steps}, '{old}', '{new}')"
        steps = steps if self._sqlite else f"({steps})::json"
        return f"CASE WHEN {is_odd} THEN {steps} ELSE {json} END"

    def _json(self, json: str, *path: str) -> str:
        """What is at a path in JSON, as JSON text."""
        if self._sqlite:
            return f"({json}) -> '$.{'.'.join(path)}'"
        return f"(({json})::json #> '{{{','.join(path)}}}')::text"

    def _text(self, json: str, *path: str) -> str:
        """What is at a path in JSON, as text: a string's own, else JSON."""
        if self._sqlite:
            return f"CAST(json_extract({json}, '$.{'.'.join(path)}') AS TEXT)"
        return f"({json})::json #>> '{{{','.join(path)}}}'"

    def _string(self, json: str, *path: str) -> str:
        """The string at a path in JSON, NULL where something else is there."""
        if self._sqlite:
            at = f"'$.{'.'.join(path)}'"
            is_text = f"json_type({json}, {at}) = 'text'"
            return f"CASE WHEN {is_text} THEN json_extract({json}, {at}) END"
        at = f"'{{{','.join(path)}}}'"
        is_text = f"json_typeof(({json})::json #> {at}) = 'string'"
        return f"CASE WHEN {is_text} THEN ({json})::json #>> {at} END"

    def _flag(self, condition: str) -> str:
        return f"CASE WHEN {condition} THEN 1 ELSE 0 END"

    def _plain(self, json: str) -> str:
        """A column of JSON as its text."""
        return json if self._sqlite else f"({json})::text"

    def _call_id(self, call: str) -> str:
        """As ``runner.store.ids.call_id`` has it."""
        place = f"{call}.turn || '_' || ({call}.position + 1)"
        return f"replace({call}.run_id, 'run_', 'call_') || '_' || {place}"

    def _is_its_own(self, row: str) -> str:
        """Whether a row with a turn is of what its run did, and no copy that a fork began with: the
        ready questions leave these out, too."""
        return f"(r.fork_turn IS NULL OR {row}.turn > r.fork_turn)"

    def runs(self) -> str:
        model = self._string("readable", "model")
        spec = f"SELECT {self._readable('j.spec')} AS readable FROM jobs j WHERE j.id = r.job_id"
        own = f"(SELECT {model} FROM ({spec}) AS s)"
        return f"""
        SELECT r.id AS run_id, r.job_id, jobs.name AS job, r.item_key AS item, r.state, r.reason,
            r.detail, coalesce(r.model, {own}) AS model,
            {self._time("r.created_at", "created_at")}, {self._time("r.started_at", "started_at")},
            {self._time("r.ended_at", "ended_at")}, r.ended_at - r.started_at AS seconds,
            r.attempt AS attempts, r.turns, r.message_count AS messages, r.denials,
            r.input_tokens, r.cache_read_tokens, r.cache_creation_tokens, r.output_tokens,
            r.max_turns, r.fork_of, r.fork_turn, r.fresh_of,
            w.path AS workspace, w.branch, w.commit_id
        FROM runs r JOIN jobs ON jobs.id = r.job_id LEFT JOIN run_workspaces w ON w.run_id = r.id
        """

    def turns(self) -> str:
        tokens = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
        used = ", ".join(tokens)
        none = ", ".join(f"0 AS {name}" for name in tokens)
        sums = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in tokens)
        return f"""
        SELECT t.run_id, r.job_id, r.item_key AS item, t.turn,
            {self._time("t.started_at", "started_at")}, {self._time("t.ended_at", "ended_at")},
            t.ended_at - t.started_at AS seconds, t.model_calls, t.tool_calls, t.failed_calls,
            t.denied_calls, t.stop_reason, {", ".join(f"t.{name}" for name in tokens)}
        FROM (
            SELECT run_id, turn, min(started_at) AS started_at, max(ended_at) AS ended_at,
                CAST(sum(model_call) AS BIGINT) AS model_calls,
                CAST(sum(tool_call) AS BIGINT) AS tool_calls,
                CAST(sum(failed) AS BIGINT) AS failed_calls,
                CAST(sum(denied) AS BIGINT) AS denied_calls,
                max(stop_reason) AS stop_reason, {sums}
            FROM (
                SELECT run_id, turn, started_at, ended_at, 1 AS model_call, 0 AS tool_call,
                    0 AS failed, 0 AS denied, stop_reason, {used}
                FROM model_calls WHERE purpose = 'turn'
                UNION ALL
                SELECT run_id, turn, started_at, ended_at, 0, 1,
                    {self._flag("outcome NOT IN ('succeeded', 'denied')")},
                    {self._flag("outcome = 'denied'")}, NULL, {none}
                FROM tool_calls
            ) AS done GROUP BY run_id, turn
        ) AS t JOIN runs r ON r.id = t.run_id WHERE {self._is_its_own("t")}
        """

    def messages(self) -> str:
        said = self._readable("b.content")

        # As ``runner.store.steer.fork`` copies them: not what was said to the other run after the turn.
        copied = """r.fork_turn IS NOT NULL AND (
            (b.message = 0 AND b.position = 0) OR b.turn < r.fork_turn
            OR (b.turn = r.fork_turn AND (b.role = 'assistant' OR b.type = 'tool_result')))"""

        def text(*path: str) -> str:
            return self._text(said, *path)

        return f"""
        SELECT b.run_id, r.job_id, r.item_key AS item, b.message, b.position, b.turn, b.role, b.type,
            {self._time("b.created_at", "at")},
            CASE b.type WHEN 'text' THEN {text("text")} WHEN 'thinking' THEN {text("thinking")}
                WHEN 'tool_use' THEN {self._json(said, "input")}
                WHEN 'tool_result' THEN {text("content")} END AS text,
            CASE b.type WHEN 'tool_use' THEN {text("name")} END AS tool,
            CASE b.type WHEN 'tool_use' THEN {text("id")}
                WHEN 'tool_result' THEN {text("tool_use_id")} END AS tool_use_id,
            {self._plain("b.content")} AS content, {self._flag(copied)} AS copied
        FROM blocks b JOIN runs r ON r.id = b.run_id
        """

    def _of_use(self, value: str) -> str:
        """A value of the block that asked for call ``c``: the one with as many uses of tools before
        it in its message as there are calls before ``c``."""
        return f"""(
            SELECT {value} FROM blocks u
            WHERE u.run_id = c.run_id AND u.message = c.message AND u.type = 'tool_use'
                AND c.position = (
                    SELECT count(*) FROM blocks p
                    WHERE p.run_id = u.run_id AND p.message = u.message
                        AND p.position < u.position AND p.type = 'tool_use'
                )
        )"""

    def _of_result(self, value: str) -> str:
        """A value of the block that answers call ``c``."""
        return f"""(
            SELECT {value} FROM blocks u
            WHERE u.run_id = c.run_id AND u.message = c.message + 1 AND u.position = c.position
                AND u.type = 'tool_result'
        )"""

    def tool_calls(self) -> str:
        said = self._readable("u.content")
        path = f"coalesce({self._string(said, 'input', 'file_path')}, "
        path += f"{self._string(said, 'input', 'path')})"
        return f"""
        SELECT c.run_id, r.job_id, r.item_key AS item, {self._call_id("c")} AS call_id, c.message,
            c.position, c.turn, c.name AS tool, c.tool_use_id,
            {self._of_use(self._json(said, "input"))} AS input,
            {self._of_use(self._string(said, "input", "command"))} AS command,
            {self._of_use(path)} AS path,
            c.decision, c.rule, c.outcome, {self._flag("c.interrupted")} AS interrupted,
            {self._time("c.started_at", "started_at")}, {self._time("c.ended_at", "ended_at")},
            c.duration AS seconds, {self._of_result(self._text(said, "content"))} AS output,
            (SELECT o.size FROM tool_outputs o WHERE o.run_id = c.run_id AND o.message = c.message
                AND o.position = c.position) AS whole_output_bytes,
            c.tree_before, c.tree_after
        FROM tool_calls c JOIN runs r ON r.id = c.run_id WHERE {self._is_its_own("c")}
        """

    def decisions(self) -> str:
        asked = """(SELECT b.created_at FROM blocks b WHERE b.run_id = c.run_id
            AND b.message = c.message AND b.position = 0)"""
        input_now = self._of_use(self._json(self._readable("u.content"), "input"))
        return f"""
        SELECT c.run_id, r.job_id, r.item_key AS item, {self._call_id("c")} AS call_id, c.message,
            c.position, c.turn, c.name AS tool, {input_now} AS input,
            {self._time(asked, "at")}, c.decision, c.rule, p.effect AS rule_effect,
            p.origin AS rule_origin, p.author AS rule_author, p.why AS rule_why,
            c.decision_snapshot AS rules_snapshot, c.matched, c.decision_reason, c.denial,
            a.id AS approval_id, {self._time("a.asked_at", "asked_at")}, a.answer,
            {self._time("a.answered_at", "answered_at")}, a.answered_at - a.asked_at AS waited_seconds,
            a.answered_by, a.answered_via, a.reason AS answer_reason,
            {self._plain("a.edited_input")} AS edited_input, c.outcome
        FROM tool_calls c JOIN runs r ON r.id = c.run_id
        LEFT JOIN permission_rules p ON p.job_id = r.job_id AND p.position = c.rule_position
        LEFT JOIN approvals a ON a.run_id = c.run_id AND a.message = c.message
            AND a.position = c.position
        WHERE c.decision IS NOT NULL AND {self._is_its_own("c")}
        """

    def events(self) -> str:
        data = self._readable("e.data")
        values = ", ".join(
            f"nullif({self._json(data, name)}, 'null') AS {name}_value" for name in ("old", "new")
        )

        def of(table: str, columns: str, join: str) -> str:
            return f"""
            SELECT {columns}, e.number, {self._time("e.at", "at")}, e.type,
                {self._text(data, "by")} AS who, {self._text(data, "why")} AS why,
                {values},
                {self._plain("e.data")} AS data
            FROM {table} e {join}"""

        of_run = of(
            "events",
            "r.job_id, e.run_id, r.item_key AS item, e.attempt",
            "JOIN runs r ON r.id = e.run_id",
        )
        nothing = ", ".join(f"CAST(NULL AS {kind})" for kind in ("TEXT", "TEXT", "INTEGER"))
        return f"{of_run} UNION ALL {of('job_events', f'e.job_id, {nothing}', '')}"

    def costs(self) -> str:
        """A call costs what ``runner.core.money.prices`` says."""
        known = ("input_tokens", "cache_read_tokens", "cache_creation_tokens", "output_tokens")
        tokens = ", ".join(f"c.{name}" for name in known)
        used = {name: f"coalesce(k.{name}, 0)" for name in known}
        write = "CASE WHEN k.hour_cache = 1 THEN p.cache_write_1h ELSE p.cache_write_5m END"
        greatest = "max" if self._sqlite else "greatest"
        factor = "(CASE WHEN k.us_only = 1 THEN p.us_inference ELSE 1.0 END) / 1000000.0"
        usd = f"""(p.input * {used["input_tokens"]} + {write} * {used["cache_creation_tokens"]}
            + p.cache_read * {used["cache_read_tokens"]}
            + p.output * {used["output_tokens"]}) * {factor}"""
        bound = f"""({greatest}(p.input, {write}, p.cache_read) * (k.worst_case - k.max_tokens)
            + p.output * k.max_tokens) * {factor}"""
        nothing = f"k.scripted = 1 OR (k.unknown = 0 AND {' + '.join(used.values())} = 0)"
        return f"""
        WITH terms AS MATERIALIZED ({self._terms()}), calls AS (
            SELECT c.run_id, r.job_id, r.item_key AS item, c.number, c.turn, c.purpose, c.model,
                c.started_at, c.latency, {tokens}, c.worst_case, c.max_tokens, t.scripted, t.us_only,
                {self._flag("c.input_tokens IS NULL AND c.charged_tokens > 0")} AS unknown,
                CASE WHEN c.hour_cache IS NULL THEN t.hour_cache
                    ELSE {self._flag("c.hour_cache")} END AS hour_cache,
                CASE WHEN c.purpose = 'summary' THEN t.fast_summary ELSE t.fast END AS fast,
                coalesce(c.input_tokens + c.cache_read_tokens + c.cache_creation_tokens,
                    c.worst_case - c.max_tokens) AS prompt,
                CASE WHEN EXISTS (SELECT 1 FROM prices q WHERE q.model = c.model) THEN c.model
                    ELSE {self._without_release("c.model")} END AS priced_as
            FROM model_calls c JOIN runs r ON r.id = c.run_id JOIN terms t ON t.job_id = r.job_id
            WHERE c.charged_tokens IS NOT NULL
        )
        SELECT k.run_id, k.job_id, k.item, k.number, k.turn, k.purpose, k.model,
            {self._time("k.started_at", "at")}, k.latency AS seconds,
            {", ".join(f"k.{name}" for name in known)},
            CASE WHEN {nothing} THEN 0.0 WHEN k.unknown = 0 THEN {usd} END AS usd,
            CASE WHEN k.unknown = 1 AND k.scripted = 0 THEN {bound} END AS usd_at_most,
            CASE WHEN k.scripted = 1 THEN 'scripted' WHEN {nothing} THEN 'usage'
                WHEN p.model IS NULL THEN 'no price' WHEN k.unknown = 1 THEN 'at most'
                ELSE 'usage' END AS basis
        FROM calls k LEFT JOIN prices p ON p.model = k.priced_as AND p.fast = k.fast
            AND k.prompt > p.above AND (p.up_to IS NULL OR k.prompt <= p.up_to)
        """

    def _without_release(self, model: str) -> str:
        """A model's id less the date or ``-latest`` at its end."""
        dated = f"{model} GLOB '*-{'[0-9]' * 8}'" if self._sqlite else f"{model} ~ '-[0-9]{{8}}$'"
        return f"""CASE WHEN {dated} THEN substr({model}, 1, length({model}) - 9)
            WHEN {model} LIKE '%-latest' THEN substr({model}, 1, length({model}) - 7)
            ELSE {model} END"""

    def _terms(self) -> str:
        """How each job's calls are billed, as ``runner.core.money.prices.Terms`` has it. What the options
        have in their ``extra_body`` is in place of what they have themselves."""

        def option(name: str, *inside: str) -> str:
            extra = self._json("o.options", "extra_body", name)
            inner = self._string("o.options", "extra_body", name, *inside)
            own = self._string("o.options", name, *inside)
            return f"CASE WHEN {extra} IS NOT NULL THEN {inner} ELSE {own} END"

        is_fast = f"{option('speed')} = 'fast'"
        return f"""
            SELECT o.job_id, {self._flag("o.provider = 'scripted'")} AS scripted,
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
