-- The oldest program that knows this schema; one row.
CREATE TABLE needs (
    program TEXT NOT NULL
) STRICT;

-- The log. `seq` has no gaps; `hash` chains every entry to the one before it.
CREATE TABLE events (
    seq                INTEGER PRIMARY KEY,
    ts_us              INTEGER NOT NULL,
    session_id         TEXT NOT NULL,
    agent_id           TEXT NOT NULL,
    user_id            TEXT NOT NULL,
    type               TEXT NOT NULL,
    v                  INTEGER NOT NULL,
    run_id             TEXT,
    generation         INTEGER,
    input_tokens       INTEGER,
    output_tokens      INTEGER,
    cache_read_tokens  INTEGER,
    cache_write_tokens INTEGER,
    cost_micros        INTEGER,
    model              TEXT,
    parent_agent_id    TEXT,
    duration_ms        INTEGER,
    content            TEXT,
    content_sha        BLOB NOT NULL,
    hash               BLOB NOT NULL
) STRICT;
CREATE INDEX events_agent ON events (agent_id);
CREATE INDEX events_run ON events (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX events_type ON events (type);
CREATE INDEX events_ts ON events (ts_us);
-- Decisions by time, of all users and of one, and the start of the session that decided.
CREATE INDEX events_decided ON events (ts_us, seq)
    WHERE +type IN ('SpawnDecided', 'Answered', 'RunResumed');
CREATE INDEX events_decided_by ON events (user_id, ts_us, seq)
    WHERE +type IN ('SpawnDecided', 'Answered', 'RunResumed');
CREATE INDEX events_session ON events (session_id) WHERE type = 'SessionStart';
-- Errors by time, for reports.
CREATE INDEX events_errors ON events (ts_us, seq) WHERE +type = 'ErrorOccurred';

CREATE TRIGGER events_keep BEFORE DELETE ON events
BEGIN SELECT raise(ABORT, 'entries of the log are never deleted'); END;

-- The only change that an entry allows: its content becomes NULL, everything else as it was.
CREATE TRIGGER events_fixed BEFORE UPDATE ON events
WHEN NEW.content IS NOT NULL OR OLD.content IS NULL
  OR NEW.seq IS NOT OLD.seq OR NEW.ts_us IS NOT OLD.ts_us OR NEW.session_id IS NOT OLD.session_id
  OR NEW.agent_id IS NOT OLD.agent_id OR NEW.user_id IS NOT OLD.user_id OR NEW.type IS NOT OLD.type
  OR NEW.v IS NOT OLD.v OR NEW.run_id IS NOT OLD.run_id OR NEW.generation IS NOT OLD.generation
  OR NEW.input_tokens IS NOT OLD.input_tokens OR NEW.output_tokens IS NOT OLD.output_tokens
  OR NEW.cache_read_tokens IS NOT OLD.cache_read_tokens OR NEW.cache_write_tokens IS NOT OLD.cache_write_tokens
  OR NEW.cost_micros IS NOT OLD.cost_micros OR NEW.model IS NOT OLD.model
  OR NEW.parent_agent_id IS NOT OLD.parent_agent_id OR NEW.duration_ms IS NOT OLD.duration_ms
  OR NEW.content_sha IS NOT OLD.content_sha OR NEW.hash IS NOT OLD.hash
BEGIN SELECT raise(ABORT, 'entries of the log are never changed'); END;

-- Projections: a fold of the log, rebuilt and compared by `ava verify`.
CREATE TABLE proposals (
    pending_id TEXT PRIMARY KEY,
    run_id     TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    session_id TEXT NOT NULL,
    state      TEXT NOT NULL,
    digest     TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    decided_us INTEGER,
    channel    TEXT,
    plan_id   TEXT
) STRICT;
CREATE INDEX proposals_user ON proposals (user_id, state);
-- Proposals that have not expired, which are few among those that were never decided.
CREATE INDEX proposals_waiting ON proposals (expires_us) WHERE state = 'awaiting_approval';

CREATE TABLE runs (
    id            TEXT PRIMARY KEY,
    pending_id    TEXT NOT NULL,
    plan_id      TEXT,
    user_id       TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    role          TEXT NOT NULL,
    name          TEXT,
    task_id       TEXT,
    model         TEXT NOT NULL,
    retry_of      TEXT,
    state         TEXT NOT NULL,
    stop_reason   TEXT,
    error_kind    TEXT,
    created_us    INTEGER NOT NULL,
    queued_us     INTEGER,
    waits_for     TEXT,
    waits_until_us INTEGER,
    asked         TEXT,
    started_us    INTEGER,
    claimed_us    INTEGER,
    ended_us      INTEGER,
    last_us       INTEGER,
    active_us     INTEGER NOT NULL DEFAULT 0,
    generation    INTEGER NOT NULL DEFAULT 0,
    instance      TEXT,
    turns         INTEGER NOT NULL DEFAULT 0,
    tool_calls    INTEGER NOT NULL DEFAULT 0,
    tokens        INTEGER NOT NULL DEFAULT 0,
    input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens  INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    cost_micros   INTEGER NOT NULL DEFAULT 0,
    uncosted_micros INTEGER NOT NULL DEFAULT 0,
    overrun       INTEGER NOT NULL DEFAULT 0,
    in_flight     TEXT,
    wrap_micros   INTEGER NOT NULL DEFAULT 0,
    wrap_scopes   TEXT,
    cancel_seq    INTEGER,
    task_seq      INTEGER,
    started_seq   INTEGER,
    result_seq    INTEGER,
    fetched_us    INTEGER,
    message_seq   INTEGER,
    money_wait    TEXT,
    step          TEXT,
    item          INTEGER
) STRICT;
CREATE INDEX runs_user ON runs (user_id, state);
CREATE INDEX runs_created ON runs (created_us);
CREATE INDEX runs_state ON runs (state);
CREATE INDEX runs_task_id ON runs (user_id, task_id) WHERE task_id IS NOT NULL;
CREATE INDEX runs_unfetched ON runs (user_id, ended_us) WHERE result_seq IS NOT NULL AND fetched_us IS NULL;
CREATE INDEX runs_queued ON runs (user_id, queued_us) WHERE queued_us IS NOT NULL;
-- Runs by when they ended, by owner, by group, by time and by role, so that a long history makes no call slower.
CREATE INDEX runs_ended ON runs (ended_us) WHERE ended_us IS NOT NULL;
CREATE INDEX runs_owners ON runs (user_id, instance) WHERE state = 'running';
CREATE INDEX runs_plan ON runs (plan_id) WHERE plan_id IS NOT NULL;
CREATE INDEX runs_newest ON runs (user_id, created_us);
CREATE INDEX runs_roles ON runs (user_id, role, created_us);
-- A user's ended runs by role, for estimates.
CREATE INDEX runs_own ON runs (user_id, role, ended_us) WHERE started_us IS NOT NULL AND ended_us IS NOT NULL;

-- What was approved, apart from the run: it is large, and a row of `runs` is written whole whenever
-- its run goes on.
CREATE TABLE configs (
    id     TEXT PRIMARY KEY,
    config TEXT NOT NULL,
    terms  TEXT
) STRICT;

CREATE TABLE plans (
    id         TEXT PRIMARY KEY,
    user_id    TEXT NOT NULL,
    cap_micros INTEGER NOT NULL,
    timeout_s  REAL,
    created_us INTEGER NOT NULL,
    started_us INTEGER,
    at_work    INTEGER NOT NULL DEFAULT 0,
    awaiting   INTEGER NOT NULL DEFAULT 0,
    stopped_us INTEGER NOT NULL DEFAULT 0,
    stopped_since_us INTEGER
) STRICT;

CREATE TABLE budgets (
    scope        TEXT PRIMARY KEY,
    spent_micros INTEGER NOT NULL DEFAULT 0,
    held_micros  INTEGER NOT NULL DEFAULT 0
) STRICT;

-- What each run has spent on each day, for reports.
CREATE TABLE spending (
    id              TEXT PRIMARY KEY,
    run_id          TEXT NOT NULL,
    user_id         TEXT NOT NULL,
    day             INTEGER NOT NULL,
    calls           INTEGER NOT NULL DEFAULT 0,
    cost_micros     INTEGER NOT NULL DEFAULT 0,
    retries_micros  INTEGER NOT NULL DEFAULT 0,
    plan_micros     INTEGER NOT NULL DEFAULT 0,
    uncosted_micros INTEGER NOT NULL DEFAULT 0,
    overruns        INTEGER NOT NULL DEFAULT 0,
    over_micros     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX spending_days ON spending (day, user_id);

-- Not a view of the log: what a run is doing this second.
CREATE TABLE live (
    run_id TEXT PRIMARY KEY,
    text   TEXT NOT NULL,
    at_us  INTEGER NOT NULL
) STRICT;

-- How far the keeper has come with each of its duties.
CREATE TABLE progress (
    name TEXT PRIMARY KEY,
    seq  INTEGER NOT NULL
) STRICT;

-- The text index: the readable words of every entry, and what a search filters by as columns of the same index, so
-- that a filter is an intersection. Contentless: it keeps no copy of a text, and an entry's words are taken out with
-- the same words that were put in. Values are single tokens made by search.py.
CREATE VIRTUAL TABLE words USING fts5 (
    agent, session, user, marks, text,
    content = '', columnsize = 0, tokenize = 'unicode61 remove_diacritics 2'
);

-- How long each file of the mirror is when it is whole; a file of another length is healed from the log.
CREATE TABLE mirrored (
    file  TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT;
