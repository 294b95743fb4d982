"""The tables. Times are milliseconds since 1970; ids are whatever their makers chose."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
    text,
)

metadata = MetaData()

CLEARED, CLEARING = 1, 2  # … all of them, or some, in `tasks.cleared`

OPEN_STATES = ("submitted", "working", "input-required")
IS_OPEN = text("tasks.state IN ('submitted', 'working', 'input-required')")

tasks = Table(
    "tasks",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("context_id", String(255), nullable=False),
    Column("state", String(32), nullable=False),
    Column("status_at", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("modes", Text, nullable=False),
    Column("message", Text),
    Column("session_id", String(64)),
    Column("title", Text),
    Column("holder", String(80)),  # the process that writes it
    Column("held_until", BigInteger, nullable=False, server_default="0"),
    Column("stop_asked", BigInteger, nullable=False, server_default="0"),
    Column("cleared", BigInteger, nullable=False, server_default="0"),  # entries were deleted …
    Column("folded", LargeBinary),  # behind what is read often, which is then read without it
    Column("root", String(600), nullable=False),  # the workspace root
    Column("opencode", String(255)),  # which OpenCode works on it; nothing: they are not told apart
    Index("ix_tasks_owner", "owner", "status_at", "id"),
    # The context comes first: admins look for one whose owner they do not name.
    Index("ix_tasks_context", "context_id", "owner", "status_at", "id"),
    Index("ix_tasks_state", "state", "status_at", "id"),  # for lists of everybody's tasks
    Index("ix_tasks_cleared", "cleared", "status_at"),
)

# How many tasks an owner has in each state, for SQLite only: triggers update it. In PostgreSQL all
# transactions would wait for each other at these rows, so tasks are counted there.
totals = Table(
    "totals",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("state", String(32), primary_key=True),
    Column("tasks", BigInteger, nullable=False),
)
_TRIGGERS = (
    """
    CREATE TRIGGER tasks_made AFTER INSERT ON tasks BEGIN
        INSERT INTO totals (owner, state, tasks) VALUES (NEW.owner, NEW.state, 1)
            ON CONFLICT (owner, state) DO UPDATE SET tasks = tasks + 1;
    END
    """,
    """
    CREATE TRIGGER tasks_moved AFTER UPDATE OF state ON tasks WHEN OLD.state <> NEW.state BEGIN
        UPDATE totals SET tasks = tasks - 1 WHERE owner = OLD.owner AND state = OLD.state;
        INSERT INTO totals (owner, state, tasks) VALUES (NEW.owner, NEW.state, 1)
            ON CONFLICT (owner, state) DO UPDATE SET tasks = tasks + 1;
    END
    """,
    """
    CREATE TRIGGER tasks_forgotten AFTER DELETE ON tasks BEGIN
        UPDATE totals SET tasks = tasks - 1 WHERE owner = OLD.owner AND state = OLD.state;
    END
    """,
)


# SQLAlchemy would state these for each database apart, and load the dialects of all for that.
_PARTIAL_INDEXES = (
    """
    CREATE INDEX ix_tasks_open ON tasks (root, state)
        WHERE state IN ('submitted', 'working', 'input-required')
    """,
    "CREATE INDEX ix_sessions_claimed ON sessions (claimed_until) WHERE claimed_until IS NOT NULL",
)


@event.listens_for(metadata, "after_create")
def _add_indexes_and_triggers(_: object, connection: Connection, **__: object) -> None:
    for index in _PARTIAL_INDEXES:
        connection.exec_driver_sql(index)
    if connection.dialect.name == "sqlite":
        for trigger in _TRIGGERS:
            connection.exec_driver_sql(trigger)


entries = Table(
    "entries",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("body", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

contexts = Table(
    "contexts",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("context_id", String(255), primary_key=True),
    Column("session_id", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("ix_contexts_session", "session_id"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", String(64), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("title", Text, nullable=False),
    Column("directory", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("claimed_until", BigInteger),  # nothing: for good
    Column("root", String(600), nullable=False),  # as of a task
    Column("opencode", String(255)),  # as of a task
)

locations = Table(
    "locations",
    metadata,
    Column("key", String(64), primary_key=True),  # of a worktree or workspace
    Column("owner", String(255), nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

worktrees = Table(
    "worktrees",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("context_id", String(255), primary_key=True),
    Column("root", String(600), nullable=False),
    Column("title", Text, nullable=False),  # of its first task
    Column("directory", Text, nullable=False),
    Column("branch", String(255), nullable=False),
    Column("base", String(64), nullable=False),  # a commit
    Column("base_branch", Text),  # nothing: a detached HEAD
    Column("checkout", Text, nullable=False),  # the working tree that it was made from
    Column("folder", Text, nullable=False),  # where in the worktree the session works
    Column("made_at", BigInteger),  # nothing: it is being made, or the process has died meanwhile
    Column("used_at", BigInteger, nullable=False),
    Column("removed", BigInteger),  # 1: it is not there until it is used again
)

keys = Table(
    "keys",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("name", String(600), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("task_id", String(64), nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("ix_keys_at", "at"),
)

interrupts = Table(
    "interrupts",
    metadata,
    Column("request_id", String(64), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("task_id", String(64), nullable=False),
    Column("context_id", String(255), nullable=False),
    Column("asked_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("closed_at", BigInteger),
    Column("resolution", String(32)),
    Column("asked", LargeBinary, nullable=False),
    Index("ix_interrupts_owner", "owner", "closed_at"),
    Index("ix_interrupts_task", "task_id"),
    Index("ix_interrupts_closed", "closed_at"),
)

allow_rules = Table(
    "allow_rules",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("context_id", String(255), primary_key=True),
    Column("permission", String(255), primary_key=True),
    Column("pattern", Text, primary_key=True),
)

# Which conversation with a peer goes on. The ids are the peer's own.
peer_conversations = Table(
    "peer_conversations",
    metadata,
    Column("owner", String(255), primary_key=True),
    Column("context_id", String(255), primary_key=True),
    Column("peer", Text, primary_key=True),
    Column("peer_context_id", Text, nullable=False),
    Column("peer_task_id", Text),
    Column("kept_at", BigInteger, nullable=False),
    Index("ix_peer_conversations_kept", "kept_at"),
)

session_models = Table(
    "session_models",
    metadata,
    Column("session_id", String(64), primary_key=True),
    Column("provider", String(255), nullable=False),
    Column("model", String(255), nullable=False),
)

# The steps of the agent that are counted in `usage_days`. Nothing else keeps a step from being
# counted again: a task may be gone, and a sub-agent of one task can be asked again by another.
usage_steps = Table(
    "usage_steps",
    metadata,
    Column("part_id", String(255), primary_key=True),  # of the step's end, in OpenCode
    Column("at", BigInteger, nullable=False),
    Index("ix_usage_steps_at", "at"),
)

usage_days = Table(
    "usage_days",
    metadata,
    Column("day", String(10), primary_key=True),  # in UTC: 2026-01-31
    Column("owner", String(255), primary_key=True),
    Column("model", String(255), primary_key=True),  # provider/model; empty: not known
    Column("steps", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("cache_read_tokens", BigInteger, nullable=False),
    Column("cache_write_tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),  # in billionths of a dollar: a sum of floats errs
    # What the budgets keep for a step that is going on.
    Column("largest_step_tokens", BigInteger, nullable=False, server_default="0"),
    Column("largest_step_cost", BigInteger, nullable=False, server_default="0"),
)

# Whom to tell about a task, and how far they were told: the log itself is the outbox.
push_configs = Table(
    "push_configs",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("id", String(255), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("target", LargeBinary, nullable=False),  # with secrets: they have to be sent
    Column("created_at", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),  # the last event that the receiver has taken
    Column("state", String(32), nullable=False),  # of the task, there
    Column("status_at", BigInteger, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("is_over", BigInteger, nullable=False),  # 1: the receiver was told the end
    Column("holder", String(80)),  # the process that sends
    Column("held_until", BigInteger, nullable=False),
    Index("ix_push_configs_open", "is_over", "holder"),
)

push_dead = Table(
    "push_dead",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("config_id", String(255), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", String(255), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    Index("ix_push_dead_owner", "owner", "at"),
)

# The processes that share the database. A row is written at the start and every few seconds.
nodes = Table(
    "nodes",
    metadata,
    Column("holder", String(80), primary_key=True),  # the process
    Column("name", String(255), nullable=False),
    Column("opencode", String(255), nullable=False),
    Column("root", String(600), nullable=False),
    Column("labels", Text, nullable=False),
    Column("version", String(64), nullable=False),
    Column("opencode_version", String(64), nullable=False),
    Column("capacity", BigInteger, nullable=False),  # tasks that it works on at a time
    Column("load", BigInteger, nullable=False),  # tasks that are there
    Column("draining", BigInteger, nullable=False, server_default="0"),  # 1: it gets no new work
    Column("started_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)

# What one process asks another to do. A row lives for seconds: the asker deletes it.
commands = Table(
    "commands",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("holder", String(80), nullable=False),  # who is to do it
    Column("kind", String(32), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("taken_at", BigInteger),
    Column("done_at", BigInteger),
    Column("result", LargeBinary),
    Index("ix_commands_holder", "holder", "taken_at"),
)

# What becomes of rows when their task or their owner is removed (`db purge`). Each table stands in
# at least one of these; a test keeps that true, and that every owner or principal is thought of.
DELETED_WITH_TASK = (entries, keys, interrupts, push_configs, push_dead)
DELETED_WITH_OWNER = (
    *(tasks, keys, interrupts, allow_rules, peer_conversations, totals, usage_days),
    *(push_configs, push_dead),
)
# These stay, without an owner and without their title: OpenCode still has the sessions, and git the
# worktrees. Without the rows, other callers could claim them where sessions are shared.
DISOWNED = (sessions, contexts, locations, worktrees)
ABOUT_NOBODY = (session_models, usage_steps, nodes, commands)
NOBODY = ""  # the owner of what was somebody's; no caller has this name

# In no backup: what can be made again from other tables, or is about running processes.
DERIVED = (totals, nodes, commands)
