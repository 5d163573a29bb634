"""Jobs that told people of questions by ``on_ask`` do so by ``[notify]``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r13"
down_revision = "r11"


def upgrade() -> None:
    for name in ("jobs", "schedules"):
        table = sa.table(name, sa.column("id", sa.Text), sa.column("spec", sa.JSON))
        for row in op.get_bind().execute(sa.select(table)).all():
            asking = row.spec.get("asking") or {}
            if "notify" not in asking:
                continue
            rest = {key: value for key, value in asking.items() if key != "notify"}
            spec = {**row.spec, "asking": rest}
            if asking["notify"] is not None and spec.get("notify") is None:
                spec["notify"] = {"on": ["needs_approval"], "command": asking["notify"]}
            op.execute(table.update().where(table.c.id == row.id).values(spec=spec))
