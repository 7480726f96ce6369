"""The schema of the first release, written out. Frozen: later changes are later revisions.

It is SQL and not the metadata of the declared tables, because those declarations will change: a database that
was made at this revision and upgraded later must end with the same tables as a new one.
`tests/store/test_schema.py` compares what the revisions make with what the code declares.
"""

from __future__ import annotations

import re

from alembic import op

revision = "0001"
down_revision = None

_DIALECTS = {"sqlite": 0, "postgresql": 1, "mysql": 2, "mariadb": 2}
_INNODB = "ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
# How SQLite, PostgreSQL and MySQL spell the words in braces.
_WORDS = {
    # SQLite numbers rows by itself only when the column is spelled INTEGER.
    "id": (
        "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
        "BIGSERIAL PRIMARY KEY",
        "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
    ),
    "small_id": (
        "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
        "SERIAL PRIMARY KEY",
        "INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY",
    ),
    "long": ("TEXT", "TEXT", "MEDIUMTEXT"),  # MySQL's TEXT ends at 64 KiB
    "float": ("FLOAT", "DOUBLE PRECISION", "DOUBLE"),
    "false": ("0", "FALSE", "FALSE"),
    "table": ("", "", _INNODB),
    "narrow": ("WITHOUT ROWID", "", _INNODB),
    # Room in each page for the updates of its rows, which then need no new index entry.
    "fill_40": ("", "WITH (fillfactor = 40)", ""),
    "fill_50": ("", "WITH (fillfactor = 50)", ""),
}


def upgrade() -> None:
    column = _DIALECTS[op.get_bind().dialect.name]
    words = {word: spellings[column] for word, spellings in _WORDS.items()}
    for statement in _SCHEMA.format(**words).split(";"):
        if column == 2:  # MySQL has no partial indexes, and its own quotes
            statement = re.sub(r"(INDEX .*\))\s+WHERE .*", r"\1", statement).replace('"', "`")
        op.execute(statement)


_SCHEMA = """
CREATE TABLE fusee_runs (
  id {id}, namespace VARCHAR(128) NOT NULL, lane_id INTEGER NOT NULL, status VARCHAR(16) NOT NULL,
  priority SMALLINT NOT NULL, attempt INTEGER DEFAULT 0 NOT NULL, spent INTEGER DEFAULT 0 NOT NULL,
  session_id BIGINT, created_at BIGINT NOT NULL, due_at BIGINT NOT NULL, started_at BIGINT,
  finished_at BIGINT, cancel_requested_at BIGINT, origin_id BIGINT, effect VARCHAR(8), rare VARCHAR(16),
  reason VARCHAR(500), idempotency_key VARCHAR(200), payload {long}, options TEXT, result {long},
  error TEXT, output {long}, kind VARCHAR(12), owner_id BIGINT, request_digest VARCHAR(100),
  CONSTRAINT fusee_runs_ended_iff_finished CHECK (CASE WHEN finished_at IS NULL THEN status = 'pending' OR
    status = 'running' OR status = 'blocked' OR status = 'delayed' OR status = 'dispatched' OR status =
    'waiting' ELSE status = 'succeeded' OR status = 'canceled' OR status = 'failed' OR status = 'missed'
    OR status = 'skipped' OR status = 'timed_out' END),
  CONSTRAINT fusee_runs_running_has_session CHECK (status <> 'running' OR session_id IS NOT NULL),
  CONSTRAINT fusee_runs_attempts CHECK (attempt >= 0 AND spent >= 0 AND spent <= attempt)
) {table} {fill_40};
CREATE UNIQUE INDEX fusee_runs_key ON fusee_runs (namespace, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX fusee_runs_rare ON fusee_runs (namespace, rare, id) WHERE rare IS NOT NULL;

CREATE TABLE fusee_request_keys (
  namespace VARCHAR(128) NOT NULL, kind VARCHAR(16) NOT NULL, idempotency_key VARCHAR(200) NOT NULL,
  request_digest VARCHAR(100) NOT NULL, made VARCHAR(128) NOT NULL, created_at BIGINT NOT NULL,
  PRIMARY KEY (namespace, kind, idempotency_key)
) {narrow};
CREATE INDEX fusee_request_keys_created ON fusee_request_keys (created_at);

CREATE TABLE fusee_ready (
  lane_id INTEGER NOT NULL, "rank" SMALLINT NOT NULL, due_at BIGINT NOT NULL, run_id BIGINT NOT NULL,
  PRIMARY KEY (lane_id, "rank", due_at, run_id)
) {narrow};

CREATE TABLE fusee_delayed (
  due_at BIGINT NOT NULL, run_id BIGINT NOT NULL, lane_id INTEGER NOT NULL, PRIMARY KEY (due_at, run_id)
) {narrow};

CREATE TABLE fusee_receipts (
  session_id BIGINT NOT NULL, number BIGINT NOT NULL, run_ids {long} NOT NULL,
  PRIMARY KEY (session_id, number)
) {narrow};

CREATE TABLE fusee_tickets (
  namespace VARCHAR(128) NOT NULL, queue VARCHAR(128) NOT NULL, run_id BIGINT NOT NULL,
  PRIMARY KEY (namespace, queue, run_id)
) {narrow};
CREATE INDEX fusee_tickets_run ON fusee_tickets (run_id);

CREATE TABLE fusee_lanes (
  id {small_id}, namespace VARCHAR(128) NOT NULL, queue VARCHAR(128) NOT NULL,
  executor VARCHAR(16) NOT NULL, handler VARCHAR(128) NOT NULL, region VARCHAR(128) NOT NULL,
  turn VARCHAR(128),
  CONSTRAINT fusee_lanes_unique UNIQUE (namespace, queue, executor, handler, region)
) {table};

CREATE TABLE fusee_attempts (
  run_id BIGINT NOT NULL, attempt INTEGER NOT NULL, namespace VARCHAR(128) NOT NULL, session_id BIGINT,
  ended VARCHAR(16) NOT NULL, started_at BIGINT, finished_at BIGINT NOT NULL, effect VARCHAR(8),
  error TEXT, output {long}, late_end VARCHAR(16), late_at BIGINT, PRIMARY KEY (run_id, attempt)
) {table};

CREATE TABLE fusee_sessions (
  id {id}, namespace VARCHAR(128) NOT NULL, worker VARCHAR(128) NOT NULL, host VARCHAR(255) NOT NULL,
  pid INTEGER NOT NULL, version VARCHAR(64) NOT NULL, state VARCHAR(16) NOT NULL,
  capacity INTEGER NOT NULL, running INTEGER DEFAULT 0 NOT NULL, abilities {long} NOT NULL,
  started_at BIGINT NOT NULL, seen_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, ended_at BIGINT,
  address VARCHAR(255), cpu {float}, memory BIGINT, drain_asked_at BIGINT,
  CONSTRAINT fusee_sessions_state CHECK (state IN ('alive', 'draining', 'ended', 'lost'))
) {table};
CREATE INDEX fusee_sessions_expiry ON fusee_sessions (state, expires_at);

CREATE TABLE fusee_queues (
  namespace VARCHAR(128) NOT NULL, name VARCHAR(128) NOT NULL, paused BOOLEAN NOT NULL,
  concurrency INTEGER, rate {float}, burst INTEGER, tokens {float} DEFAULT 0 NOT NULL,
  tokens_at BIGINT DEFAULT 0 NOT NULL, strategy VARCHAR(16), PRIMARY KEY (namespace, name)
) {table};

CREATE TABLE fusee_assigned (
  run_id BIGINT NOT NULL, session_id BIGINT NOT NULL, assigned_at BIGINT NOT NULL,
  cpu {float} DEFAULT 0 NOT NULL, memory BIGINT DEFAULT 0 NOT NULL, PRIMARY KEY (run_id)
) {narrow};
CREATE INDEX fusee_assigned_session ON fusee_assigned (session_id);

CREATE TABLE fusee_api_keys (
  id {id}, namespace VARCHAR(128) NOT NULL, name VARCHAR(128) NOT NULL, role VARCHAR(16) NOT NULL,
  digest VARCHAR(64) NOT NULL, created_at BIGINT NOT NULL, revoked_at BIGINT,
  CONSTRAINT fusee_api_keys_role CHECK (role IN ('admin', 'operator', 'viewer')),
  UNIQUE (digest)
) {table};

CREATE TABLE fusee_totals (
  namespace VARCHAR(128) NOT NULL, name VARCHAR(32) NOT NULL, label VARCHAR(160) NOT NULL,
  value BIGINT NOT NULL, PRIMARY KEY (namespace, name, label)
) {narrow};

CREATE TABLE fusee_batches (
  id {id}, namespace VARCHAR(128) NOT NULL, batch_name VARCHAR(200) NOT NULL,
  batch_type VARCHAR(128) NOT NULL, target_type VARCHAR(128) NOT NULL, creator VARCHAR(128) NOT NULL,
  env VARCHAR(128) NOT NULL, region VARCHAR(128) NOT NULL, az VARCHAR(128) NOT NULL,
  definition {long} NOT NULL, phase VARCHAR(16) NOT NULL, status VARCHAR(20) NOT NULL,
  reason VARCHAR(500), version INTEGER NOT NULL, total BIGINT NOT NULL, pending BIGINT DEFAULT 0 NOT NULL,
  running BIGINT DEFAULT 0 NOT NULL, success BIGINT DEFAULT 0 NOT NULL, fail BIGINT DEFAULT 0 NOT NULL,
  cancel BIGINT DEFAULT 0 NOT NULL, retry_pending BIGINT DEFAULT 0 NOT NULL,
  rollback_pending BIGINT DEFAULT 0 NOT NULL, rollback_running BIGINT DEFAULT 0 NOT NULL,
  rollback_success BIGINT DEFAULT 0 NOT NULL, rollback_fail BIGINT DEFAULT 0 NOT NULL,
  reached BIGINT DEFAULT 0 NOT NULL, stopped BOOLEAN NOT NULL, undo_next BOOLEAN NOT NULL,
  "force" BOOLEAN NOT NULL, "window" INTEGER DEFAULT 0 NOT NULL, round_left BIGINT DEFAULT 0 NOT NULL,
  parent_run BIGINT, idempotency_key VARCHAR(200), created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
  started_at BIGINT, finished_at BIGINT, request_digest VARCHAR(100), left_applied BIGINT,
  kept_until BIGINT, parked BIGINT DEFAULT 0 NOT NULL, waits_for BIGINT, entered_at BIGINT,
  CONSTRAINT fusee_batches_phase CHECK (phase IN ('uploading', 'planned', 'applying', 'stopping',
    'rolling_back', 'done', 'discarded')),
  CONSTRAINT fusee_batches_counts CHECK (phase = 'uploading' OR total = pending + running + success + fail
    + cancel + retry_pending + rollback_pending + rollback_running + rollback_success + rollback_fail),
  CONSTRAINT fusee_batches_no_less_than_none CHECK (pending >= 0 AND running >= 0 AND success >= 0 AND
    fail >= 0 AND cancel >= 0 AND retry_pending >= 0 AND rollback_pending >= 0 AND rollback_running >= 0
    AND rollback_success >= 0 AND rollback_fail >= 0),
  CONSTRAINT fusee_batches_key UNIQUE (namespace, idempotency_key),
  CONSTRAINT fusee_batches_parent_run UNIQUE (parent_run)
) {table};
CREATE INDEX fusee_batches_finished ON fusee_batches (finished_at);
CREATE INDEX fusee_batches_phase_id ON fusee_batches (phase, id);

CREATE TABLE fusee_batch_tasks (
  batch_id BIGINT NOT NULL, position BIGINT NOT NULL, target_id VARCHAR(128) NOT NULL,
  target_name VARCHAR(200) NOT NULL, target_env VARCHAR(128) NOT NULL, payload {long} NOT NULL,
  image {long}, run_id BIGINT, rollback_run_id BIGINT, retry_time INTEGER DEFAULT 0 NOT NULL,
  todo VARCHAR(8), turn BIGINT, info TEXT, PRIMARY KEY (batch_id, position),
  CONSTRAINT fusee_batch_tasks_target UNIQUE (batch_id, target_id)
) {narrow} {fill_50};
CREATE INDEX fusee_batch_tasks_todo ON fusee_batch_tasks (batch_id, todo, turn, position DESC)
  WHERE todo IS NOT NULL;

CREATE TABLE fusee_tasks (
  id {id}, namespace VARCHAR(128) NOT NULL, name VARCHAR(128) NOT NULL, live_name VARCHAR(128),
  status VARCHAR(16) NOT NULL, reason VARCHAR(500), version INTEGER NOT NULL, definition {long} NOT NULL,
  next_fire_at BIGINT, anchor BIGINT NOT NULL, last_fire_at BIGINT, last_run_id BIGINT,
  last_status VARCHAR(16), last_attempt INTEGER DEFAULT 0 NOT NULL, failures INTEGER DEFAULT 0 NOT NULL,
  failure_skipped BOOLEAN NOT NULL, rate_at BIGINT DEFAULT 0 NOT NULL,
  late_alert_at BIGINT DEFAULT 0 NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
  deleted_at BIGINT, region VARCHAR(128),
  CONSTRAINT fusee_tasks_name UNIQUE (namespace, live_name),
  CONSTRAINT fusee_tasks_status CHECK (status IN ('enabled', 'paused', 'disabled', 'deleted')),
  CONSTRAINT fusee_tasks_only_enabled_fire CHECK (next_fire_at IS NULL OR status = 'enabled'),
  CONSTRAINT fusee_tasks_deleted_has_no_name CHECK ((status = 'deleted') = (live_name IS NULL))
) {table};
CREATE INDEX fusee_tasks_due ON fusee_tasks (next_fire_at, id) WHERE next_fire_at IS NOT NULL;

CREATE TABLE fusee_fires (
  task_id BIGINT NOT NULL, fire_time BIGINT NOT NULL, shard INTEGER NOT NULL,
  namespace VARCHAR(128) NOT NULL, cause VARCHAR(12) NOT NULL, decision VARCHAR(12) NOT NULL,
  code VARCHAR(16) NOT NULL, rule VARCHAR(500) NOT NULL, run_id BIGINT NOT NULL,
  decided_at BIGINT NOT NULL, admitted_at BIGINT, through BIGINT, open_task BIGINT, held VARCHAR(12),
  backfill_id BIGINT, superseded BOOLEAN NOT NULL, PRIMARY KEY (task_id, fire_time, shard),
  CONSTRAINT fusee_fires_held_is_open CHECK (held IS NULL OR open_task IS NOT NULL)
) {narrow};
CREATE INDEX fusee_fires_open ON fusee_fires (open_task, held, fire_time) WHERE open_task IS NOT NULL;
CREATE INDEX fusee_fires_run ON fusee_fires (run_id);

CREATE TABLE fusee_backfills (
  id {id}, namespace VARCHAR(128) NOT NULL, task_id BIGINT NOT NULL, from_time BIGINT NOT NULL,
  to_time BIGINT NOT NULL, concurrency INTEGER NOT NULL, total INTEGER NOT NULL,
  idempotency_key VARCHAR(200), created_at BIGINT NOT NULL, request_digest VARCHAR(100),
  CONSTRAINT fusee_backfills_key UNIQUE (namespace, idempotency_key)
) {table};

CREATE TABLE fusee_outbox (
  id {id}, kind VARCHAR(12) NOT NULL, run_id BIGINT NOT NULL, fire_time BIGINT,
  many INTEGER DEFAULT 1 NOT NULL
) {table};
CREATE INDEX fusee_outbox_kind ON fusee_outbox (kind, id);

CREATE TABLE fusee_task_edges (
  upstream_id BIGINT NOT NULL, downstream_id BIGINT NOT NULL, namespace VARCHAR(128) NOT NULL,
  PRIMARY KEY (upstream_id, downstream_id)
) {narrow};
CREATE INDEX fusee_task_edges_down ON fusee_task_edges (downstream_id);

CREATE TABLE fusee_gates (
  run_id BIGINT NOT NULL, rule VARCHAR(16) NOT NULL, needs INTEGER NOT NULL, succeeded INTEGER NOT NULL,
  ended INTEGER NOT NULL, PRIMARY KEY (run_id),
  CONSTRAINT fusee_gates_counts CHECK (succeeded <= ended AND ended <= needs)
) {narrow};

CREATE TABLE fusee_waits (
  task_id BIGINT NOT NULL, fire_time BIGINT NOT NULL, run_id BIGINT NOT NULL,
  PRIMARY KEY (task_id, fire_time, run_id)
) {narrow};
CREATE INDEX fusee_waits_run ON fusee_waits (run_id);

CREATE TABLE fusee_edges (
  upstream_run BIGINT NOT NULL, downstream_run BIGINT NOT NULL, PRIMARY KEY (upstream_run, downstream_run)
) {narrow};

CREATE TABLE fusee_workflows (
  id {id}, namespace VARCHAR(128) NOT NULL, name VARCHAR(128) NOT NULL, live_name VARCHAR(128),
  version INTEGER NOT NULL, description VARCHAR(512) NOT NULL, nodes INTEGER NOT NULL,
  definition {long} NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, deleted_at BIGINT,
  CONSTRAINT fusee_workflows_name UNIQUE (namespace, live_name)
) {table};

CREATE TABLE fusee_workflow_runs (
  id {id}, namespace VARCHAR(128) NOT NULL, workflow_id BIGINT NOT NULL, version INTEGER NOT NULL,
  status VARCHAR(16) NOT NULL, reason VARCHAR(500), shape {long} NOT NULL, given {long} NOT NULL,
  params {long} NOT NULL, total INTEGER NOT NULL, ended INTEGER NOT NULL, succeeded INTEGER NOT NULL,
  skipped INTEGER NOT NULL, canceled INTEGER NOT NULL, parent_run BIGINT, origin_id BIGINT,
  idempotency_key VARCHAR(200), created_at BIGINT NOT NULL, finished_at BIGINT,
  cancel_requested_at BIGINT, request_digest VARCHAR(100),
  CONSTRAINT fusee_workflow_runs_key UNIQUE (namespace, idempotency_key),
  CONSTRAINT fusee_workflow_runs_parent_run UNIQUE (parent_run),
  CONSTRAINT fusee_workflow_runs_counts CHECK (ended <= total),
  CONSTRAINT fusee_workflow_runs_ended CHECK ((status = 'running') = (finished_at IS NULL))
) {table};
CREATE INDEX fusee_workflow_runs_finished ON fusee_workflow_runs (finished_at);
CREATE INDEX fusee_workflow_runs_of ON fusee_workflow_runs (workflow_id, id);

CREATE TABLE fusee_workflow_nodes (
  workflow_run_id BIGINT NOT NULL, position INTEGER NOT NULL, node VARCHAR(128) NOT NULL,
  run_id BIGINT NOT NULL, status VARCHAR(16), PRIMARY KEY (workflow_run_id, position)
) {narrow};
CREATE INDEX fusee_workflow_nodes_run ON fusee_workflow_nodes (run_id);

CREATE TABLE fusee_callbacks (
  run_id BIGINT NOT NULL, attempt INTEGER NOT NULL, namespace VARCHAR(128) NOT NULL,
  digest VARCHAR(64) NOT NULL, signed BOOLEAN NOT NULL, timeout BIGINT NOT NULL, deadline BIGINT,
  used_at BIGINT, outcome {long}, PRIMARY KEY (run_id, attempt)
) {narrow};
CREATE INDEX fusee_callbacks_due ON fusee_callbacks (deadline) WHERE deadline IS NOT NULL;

CREATE TABLE fusee_task_templates (
  namespace VARCHAR(128) NOT NULL, name VARCHAR(128) NOT NULL, version INTEGER NOT NULL,
  definition {long} NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
  PRIMARY KEY (namespace, name)
) {narrow};

CREATE TABLE fusee_edit_locks (
  name VARCHAR(200) NOT NULL, PRIMARY KEY (name)
) {table};

CREATE TABLE fusee_dispatched (
  run_id BIGINT NOT NULL, attempt INTEGER NOT NULL, lane_id INTEGER NOT NULL, level SMALLINT NOT NULL,
  published_at BIGINT NOT NULL, deaths INTEGER DEFAULT 0 NOT NULL, held BOOLEAN DEFAULT {false} NOT NULL,
  PRIMARY KEY (run_id)
) {narrow};
CREATE INDEX fusee_dispatched_order ON fusee_dispatched (lane_id, level, published_at);

CREATE TABLE fusee_openings (
  request VARCHAR(64) NOT NULL, session_id BIGINT NOT NULL, PRIMARY KEY (request)
) {narrow};

CREATE TABLE fusee_dead_letters (
  id {id}, digest VARCHAR(64) NOT NULL, queue VARCHAR(255) NOT NULL, reason VARCHAR(100) NOT NULL,
  died_at BIGINT NOT NULL, run_ids {long} NOT NULL, body {long} NOT NULL, "binary" BOOLEAN NOT NULL,
  UNIQUE (digest)
) {table};

CREATE TABLE fusee_bulk_jobs (
  id {id}, namespace VARCHAR(128) NOT NULL, name VARCHAR(200) NOT NULL, business VARCHAR(128) NOT NULL,
  status VARCHAR(20) NOT NULL, reason VARCHAR(500), doom VARCHAR(8), version INTEGER NOT NULL,
  definition {long} NOT NULL, source {long} NOT NULL, data {long},
  callbacks VARCHAR(100) DEFAULT '' NOT NULL, undo_of BIGINT, first BIGINT, total BIGINT,
  made INTEGER DEFAULT 0 NOT NULL, ended BIGINT DEFAULT 0 NOT NULL, quarantined BIGINT DEFAULT 0 NOT NULL,
  allowed BIGINT, retried BIGINT DEFAULT 0 NOT NULL, replayed BIGINT DEFAULT 0 NOT NULL,
  concurrency INTEGER NOT NULL, rate {float} NOT NULL, rate_at BIGINT DEFAULT 0 NOT NULL,
  speed {float} DEFAULT 0 NOT NULL, speed_at BIGINT DEFAULT 0 NOT NULL, launcher BIGINT, parent_run BIGINT,
  idempotency_key VARCHAR(200), created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, started_at BIGINT,
  finished_at BIGINT, handler VARCHAR(128), request_digest VARCHAR(100), "window" INTEGER,
  held_by VARCHAR(16), checking VARCHAR(8), checker BIGINT, fingerprint TEXT,
  progressed_at BIGINT DEFAULT 0 NOT NULL, stalled_at BIGINT, item_timeout {float}, item_count BIGINT,
  absent BIGINT DEFAULT 0 NOT NULL,
  CONSTRAINT fusee_bulk_jobs_status CHECK (status IN ('created', 'waiting_business', 'running',
    'stopping', 'stopped', 'finished', 'failed')),
  CONSTRAINT fusee_bulk_jobs_counts CHECK (ended >= 0 AND quarantined >= 0 AND quarantined <= ended AND
    (total IS NULL OR ended <= total)),
  CONSTRAINT fusee_bulk_jobs_doom CHECK ((status = 'stopping') = (doom IS NOT NULL)),
  CONSTRAINT fusee_bulk_jobs_key UNIQUE (namespace, idempotency_key),
  CONSTRAINT fusee_bulk_jobs_parent_run UNIQUE (parent_run)
) {table};
CREATE INDEX fusee_bulk_jobs_finished ON fusee_bulk_jobs (finished_at);
CREATE INDEX fusee_bulk_jobs_status_id ON fusee_bulk_jobs (status, id);

CREATE TABLE fusee_bulk_segments (
  job_id BIGINT NOT NULL, number INTEGER NOT NULL, first BIGINT NOT NULL, stop BIGINT NOT NULL,
  watermark BIGINT NOT NULL, done {long} NOT NULL, reached BIGINT NOT NULL,
  ended BIGINT DEFAULT 0 NOT NULL, quarantined BIGINT DEFAULT 0 NOT NULL,
  retried BIGINT DEFAULT 0 NOT NULL, replayed BIGINT DEFAULT 0 NOT NULL, share INTEGER DEFAULT 0 NOT NULL,
  state VARCHAR(8) NOT NULL, run_id BIGINT, pace {float} DEFAULT 0 NOT NULL,
  pace_until BIGINT DEFAULT 0 NOT NULL, wants {float}, held_by VARCHAR(16),
  taken_attempt INTEGER DEFAULT 0 NOT NULL, caution VARCHAR(200), absent BIGINT DEFAULT 0 NOT NULL,
  PRIMARY KEY (job_id, number),
  CONSTRAINT fusee_bulk_segments_order CHECK (first <= watermark AND watermark <= reached AND reached <=
    stop),
  CONSTRAINT fusee_bulk_segments_counts CHECK (quarantined <= ended AND watermark - first <= ended AND
    ended <= reached - first),
  CONSTRAINT fusee_bulk_segments_done CHECK ((state = 'done') = (watermark = stop))
) {narrow};
CREATE INDEX fusee_bulk_segments_run ON fusee_bulk_segments (run_id);

CREATE TABLE fusee_bulk_quarantine (
  job_id BIGINT NOT NULL, item_index BIGINT NOT NULL, error TEXT NOT NULL, attempts INTEGER NOT NULL,
  item TEXT, at BIGINT NOT NULL, origin BIGINT, PRIMARY KEY (job_id, item_index)
) {narrow};

CREATE TABLE fusee_bulk_logs (
  job_id BIGINT NOT NULL, id INTEGER NOT NULL, at BIGINT NOT NULL, kind VARCHAR(8) NOT NULL,
  who VARCHAR(128) NOT NULL, text TEXT NOT NULL, PRIMARY KEY (job_id, id),
  CONSTRAINT fusee_bulk_logs_kind CHECK (kind IN ('data', 'operator'))
) {narrow};

CREATE TABLE fusee_businesses (
  namespace VARCHAR(128) NOT NULL, name VARCHAR(128) NOT NULL, version INTEGER NOT NULL,
  definition {long} NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
  PRIMARY KEY (namespace, name)
) {narrow}
"""
