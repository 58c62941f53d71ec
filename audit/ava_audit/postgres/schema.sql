-- The log on a Postgres server, with the same tables as the embedded database.
CREATE SCHEMA ava;
SET search_path = ava;

-- Which log this is, and the version of its schema; one row.
CREATE TABLE meta (
    log_id  text NOT NULL,
    version bigint NOT NULL
);

-- The oldest program that knows this schema; one row.
CREATE TABLE needs (
    program text NOT NULL
);

-- The log. `seq` has no gaps; `hash` chains every entry to the one before it.
CREATE TABLE events (
    seq                bigint PRIMARY KEY,
    ts_us              bigint NOT NULL,
    session_id         text COLLATE "C" NOT NULL,
    agent_id           text COLLATE "C" NOT NULL,
    user_id            text COLLATE "C" NOT NULL,
    type               text COLLATE "C" NOT NULL,
    v                  bigint NOT NULL,
    run_id             text COLLATE "C",
    generation         bigint,
    input_tokens       bigint,
    output_tokens      bigint,
    cache_read_tokens  bigint,
    cache_write_tokens bigint,
    cost_micros        bigint,
    model              text COLLATE "C",
    parent_agent_id    text COLLATE "C",
    duration_ms        bigint,
    content            text COLLATE "C",
    content_sha        bytea NOT NULL,
    hash               bytea NOT NULL
);
-- With `seq`, because each of these is read in the order of the log.
CREATE INDEX events_agent ON events (agent_id, seq);
CREATE INDEX events_run ON events (run_id, seq) WHERE run_id IS NOT NULL;
CREATE INDEX events_type ON events (type, seq);
CREATE INDEX events_ts ON events (ts_us);
-- Decisions by time, of all users and of one, and the start of the session that decided.
CREATE INDEX events_decided ON events (ts_us, seq)
    WHERE type IN ('SpawnDecided', 'Answered', 'RunResumed');
CREATE INDEX events_decided_by ON events (user_id, ts_us, seq)
    WHERE type IN ('SpawnDecided', 'Answered', 'RunResumed');
CREATE INDEX events_session ON events (session_id) WHERE type = 'SessionStart';
-- Errors by time, for reports.
CREATE INDEX events_errors ON events (ts_us, seq) WHERE type = 'ErrorOccurred';

CREATE FUNCTION events_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'entries of the log are never deleted';
END $$;

-- The only change that an entry allows: its content becomes NULL, everything else as it was.
CREATE FUNCTION events_fixed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erased events := OLD;
BEGIN
    erased.content := NULL;
    IF OLD.content IS NULL OR NEW IS DISTINCT FROM erased THEN
        RAISE EXCEPTION 'entries of the log are never changed';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER events_keep BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION events_kept();
CREATE TRIGGER events_keep_all BEFORE TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION events_kept();
CREATE TRIGGER events_fixed BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION events_fixed();

-- Projections: a fold of the log, rebuilt and compared by `ava verify`.
CREATE TABLE proposals (
    pending_id text COLLATE "C" PRIMARY KEY,
    run_id     text COLLATE "C" NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    state      text COLLATE "C" NOT NULL,
    digest     text COLLATE "C" NOT NULL,
    created_us bigint NOT NULL,
    expires_us bigint NOT NULL,
    decided_us bigint,
    channel    text COLLATE "C",
    plan_id   text COLLATE "C"
);
CREATE INDEX proposals_user ON proposals (user_id, state);
-- Proposals that have not expired, which are few among those that were never decided.
CREATE INDEX proposals_waiting ON proposals (expires_us) WHERE state = 'awaiting_approval';

CREATE TABLE runs (
    id            text COLLATE "C" PRIMARY KEY,
    pending_id    text COLLATE "C" NOT NULL,
    plan_id      text COLLATE "C",
    user_id       text COLLATE "C" NOT NULL,
    session_id    text COLLATE "C" NOT NULL,
    role          text COLLATE "C" NOT NULL,
    name          text COLLATE "C",
    task_id       text COLLATE "C",
    model         text COLLATE "C" NOT NULL,
    retry_of      text COLLATE "C",
    state         text COLLATE "C" NOT NULL,
    stop_reason   text COLLATE "C",
    error_kind    text COLLATE "C",
    created_us    bigint NOT NULL,
    queued_us     bigint,
    waits_for     text COLLATE "C",
    waits_until_us bigint,
    asked         text COLLATE "C",
    started_us    bigint,
    claimed_us    bigint,
    ended_us      bigint,
    last_us       bigint,
    active_us     bigint NOT NULL DEFAULT 0,
    generation    bigint NOT NULL DEFAULT 0,
    instance      text COLLATE "C",
    turns         bigint NOT NULL DEFAULT 0,
    tool_calls    bigint NOT NULL DEFAULT 0,
    tokens        bigint NOT NULL DEFAULT 0,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    cache_read_tokens  bigint NOT NULL DEFAULT 0,
    cache_write_tokens bigint NOT NULL DEFAULT 0,
    cost_micros   bigint NOT NULL DEFAULT 0,
    uncosted_micros bigint NOT NULL DEFAULT 0,
    overrun       bigint NOT NULL DEFAULT 0,
    in_flight     text COLLATE "C",
    wrap_micros   bigint NOT NULL DEFAULT 0,
    wrap_scopes   text COLLATE "C",
    cancel_seq    bigint,
    task_seq      bigint,
    started_seq   bigint,
    result_seq    bigint,
    fetched_us    bigint,
    message_seq   bigint,
    money_wait    text COLLATE "C",
    step          text COLLATE "C",
    item          bigint
);
CREATE INDEX runs_user ON runs (user_id, state);
CREATE INDEX runs_created ON runs (created_us);
CREATE INDEX runs_state ON runs (state);
CREATE INDEX runs_plan ON runs (plan_id) WHERE plan_id IS NOT NULL;
CREATE INDEX runs_task_id ON runs (user_id, task_id) WHERE task_id IS NOT NULL;
CREATE INDEX runs_unfetched ON runs (user_id, ended_us) WHERE result_seq IS NOT NULL AND fetched_us IS NULL;
CREATE INDEX runs_queued ON runs (user_id, queued_us) WHERE queued_us IS NOT NULL;
-- Runs by when they ended, by owner, by time and by role, so that a long history makes no call slower.
CREATE INDEX runs_ended ON runs (ended_us) WHERE ended_us IS NOT NULL;
CREATE INDEX runs_owners ON runs (user_id, instance) WHERE state = 'running';
CREATE INDEX runs_newest ON runs (user_id, created_us);
CREATE INDEX runs_roles ON runs (user_id, role, created_us);
-- A user's ended runs by role, for estimates.
CREATE INDEX runs_own ON runs (user_id, role, ended_us) WHERE started_us IS NOT NULL AND ended_us IS NOT NULL;

-- What was approved, apart from the run: it is large, and a row of `runs` is written whole whenever its run goes on.
CREATE TABLE configs (
    id     text COLLATE "C" PRIMARY KEY,
    config text COLLATE "C" NOT NULL,
    terms  text COLLATE "C"
);

CREATE TABLE plans (
    id         text COLLATE "C" PRIMARY KEY,
    user_id    text COLLATE "C" NOT NULL,
    cap_micros bigint NOT NULL,
    timeout_s  double precision,
    created_us bigint NOT NULL,
    started_us bigint,
    at_work    bigint NOT NULL DEFAULT 0,
    awaiting   bigint NOT NULL DEFAULT 0,
    stopped_us bigint NOT NULL DEFAULT 0,
    stopped_since_us bigint
);

CREATE TABLE budgets (
    scope        text COLLATE "C" PRIMARY KEY,
    spent_micros bigint NOT NULL DEFAULT 0,
    held_micros  bigint NOT NULL DEFAULT 0
);

-- What each run has spent on each day, for reports.
CREATE TABLE spending (
    id              text COLLATE "C" PRIMARY KEY,
    run_id          text COLLATE "C" NOT NULL,
    user_id         text COLLATE "C" NOT NULL,
    day             bigint NOT NULL,
    calls           bigint NOT NULL DEFAULT 0,
    cost_micros     bigint NOT NULL DEFAULT 0,
    retries_micros  bigint NOT NULL DEFAULT 0,
    plan_micros     bigint NOT NULL DEFAULT 0,
    uncosted_micros bigint NOT NULL DEFAULT 0,
    overruns        bigint NOT NULL DEFAULT 0,
    over_micros     bigint NOT NULL DEFAULT 0
);
CREATE INDEX spending_days ON spending (day, user_id);

-- Not a view of the log: what a run is doing this second.
CREATE TABLE live (
    run_id text COLLATE "C" PRIMARY KEY,
    text   text COLLATE "C" NOT NULL,
    at_us  bigint NOT NULL
);

-- How far maintenance has come with each of its duties.
CREATE TABLE progress (
    name text COLLATE "C" PRIMARY KEY,
    seq  bigint NOT NULL
);

-- The text index: the words of every entry as numbers (hashes), with those that a search filters by, and the same words
-- in their order, for words that must be adjacent. SQLite's tokenizer makes the words here too.
CREATE TABLE words (
    entry bigint PRIMARY KEY,
    keys  bigint[] NOT NULL,
    text  text COLLATE "C" NOT NULL
);
-- A long list of pending keys would make each search of a rare word read the whole table.
CREATE INDEX words_keys ON words USING gin (keys) WITH (gin_pending_list_limit = 128);

-- How long each file of the mirror is when it is whole; a file of another length is healed from the log.
CREATE TABLE mirrored (
    file  text COLLATE "C" PRIMARY KEY,
    bytes bigint NOT NULL
);

-- A value of a JSON text, as SQLite's function of this name returns it: true and false are numbers, null is NULL. No
-- value that is looked up has a NUL character, which Postgres cannot store.
CREATE FUNCTION json_extract(content text, path text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE jsonb_typeof(value) WHEN 'boolean' THEN to_jsonb((value::boolean)::integer)
                                    WHEN 'null' THEN NULL ELSE value END
    FROM (SELECT replace(content, '\u0000', '\ufffd')::jsonb #> string_to_array(substr(path, 3), '.') AS value) AS found
$$;

-- Which processes live: not a part of the log. A process renews its row; one that expired counts as dead.
CREATE TABLE leases (
    name       text COLLATE "C" PRIMARY KEY,
    kind       text COLLATE "C" NOT NULL,
    host       text COLLATE "C" NOT NULL,
    pid        bigint NOT NULL,
    address    text COLLATE "C" NOT NULL,
    offers     text COLLATE "C" NOT NULL,
    lease_ms   bigint NOT NULL,
    renewed_at timestamptz NOT NULL
);

-- Files of runs, beside the log: each by its SHA-256, in parts of at most a megabyte, while a run uses it.
CREATE TABLE blobs (
    sha256 text COLLATE "C" PRIMARY KEY,
    bytes  bigint NOT NULL
);
CREATE TABLE blob_parts (
    sha256 text COLLATE "C" NOT NULL REFERENCES blobs ON DELETE CASCADE,
    part   integer NOT NULL,
    data   bytea NOT NULL,
    PRIMARY KEY (sha256, part)
);
CREATE TABLE blob_uses (
    run_id   text COLLATE "C" NOT NULL,
    sha256   text COLLATE "C" NOT NULL REFERENCES blobs,
    purpose  text COLLATE "C" NOT NULL,
    added_us bigint NOT NULL,
    PRIMARY KEY (run_id, sha256, purpose)
);
CREATE INDEX blob_uses_by_blob ON blob_uses (sha256);

-- Not a part of the log: small private documents that all servers share, such as the hashes of tokens. No keys.
CREATE TABLE documents (
    name    text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    text    text COLLATE "C" NOT NULL
);

-- What the runs of each instance are doing: not a part of the log, and not in the write-ahead log either. Processes
-- with the embedded database show it in files.
CREATE UNLOGGED TABLE activities (
    name     text COLLATE "C" PRIMARY KEY,
    doing    text COLLATE "C" NOT NULL,
    shown_at timestamptz NOT NULL
);
