"""What a configuration may say, where it may say it, and what is told when it is wrong."""

import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fusee.config import Config, example_toml, load, reference
from fusee.config.keys import ALIASES, groups, keys, variable
from fusee.config.lines import toml_lines
from fusee.config.units import format_duration, format_size, parse_duration, parse_size
from fusee.errors import ConfigError

ROOT = Path(__file__).parents[2]
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

TOML_OF_THE_FIRST_DESIGN = """\
[database]
url = "postgresql://user:pass@localhost/scheduler"
max_connections = 10

[dispatcher]
enabled = true
schedule_interval_seconds = 10

[worker]
enabled = false
worker_id = "worker-001"
max_concurrent_tasks = 5
heartbeat_interval_seconds = 30

[api]
bind_address = "0.0.0.0:8080"
"""

YAML_OF_AN_EARLIER_DESIGN = """\
scheduler:
  poll_interval: 1s   # 建议 <=1s, 否则高频任务触发会被抽样
executor:
  worker_pool_size: 16
  request_timeout: 15s
"""


@pytest.fixture(autouse=True)
def somewhere_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def toml(text: str, env: dict[str, str] | None = None, **overrides: Any) -> Config:
    return load(write("fusee.toml", text), env or {}, overrides)


def refused(text: str, name: str = "fusee.toml", env: dict[str, str] | None = None, **overrides: Any) -> str:
    with pytest.raises(ConfigError) as wrong:
        load(write(name, text), env or {}, overrides)
    return str(wrong.value)


def get(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


class TestWhatTheSourceDesignsWrote:
    def test_the_toml_sample_loads_as_it_stands(self) -> None:
        config = toml(TOML_OF_THE_FIRST_DESIGN)
        assert config.database.url == "postgresql://user:pass@localhost/scheduler"
        assert config.dispatcher.schedule_interval_seconds == 10
        assert (config.worker.enabled, config.worker.worker_id) == (False, "worker-001")
        assert config.worker.max_concurrent_tasks == 5
        assert config.api.bind_address == "0.0.0.0:8080"

    def test_its_slow_heartbeat_stretches_the_lease(self) -> None:
        assert toml(TOML_OF_THE_FIRST_DESIGN).worker.lease_ttl == 90

    def test_the_yaml_sample_loads_under_our_names(self) -> None:
        config = load(write("fusee.yaml", YAML_OF_AN_EARLIER_DESIGN), {})
        assert config.dispatcher.schedule_interval_seconds == 1
        assert config.worker.max_concurrent_tasks == 16
        assert config.executors.http.timeout == 15

    def test_two_names_for_one_thing_are_refused(self) -> None:
        text = "[worker]\nmax_concurrent_tasks = 1\n[executor]\nworker_pool_size = 2\n"
        assert refused(text) == (
            "worker.max_concurrent_tasks and executor.worker_pool_size at fusee.toml:4 set the same thing; "
            "keep worker.max_concurrent_tasks"
        )

    def test_an_error_in_an_alias_names_what_was_written(self) -> None:
        assert refused("executor:\n  worker_pool_size: 0\n", "fusee.yml").startswith(
            "executor.worker_pool_size at fusee.yml:2 must be at least 1"
        )

    @pytest.mark.parametrize("path", ALIASES.values())
    def test_an_alias_leads_to_a_key(self, path: tuple[str, ...]) -> None:
        assert path in keys()


class TestDefaults:
    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("namespace", "default"),
            ("database.url", "sqlite:///fusee.db"),
            ("dispatcher.retention", 7 * 86400),
            ("worker.worker_id", None),
            ("worker.lease_ttl", 30),
            ("worker.queues", ("*",)),
            ("worker.labels", {}),
            ("worker.prefetch", 0.05),
            ("api.bind_address", "127.0.0.1:8080"),
            ("api.max_body", 8 * 1024 * 1024),
            ("api.keys", ()),
            ("executors.shell.enabled", False),
            ("executors.http.enabled", True),
            ("executors.python.isolation", "thread"),
            ("logging.format", "auto"),
        ],
    )
    def test_are_these(self, path: str, value: object) -> None:
        assert get(Config(), path) == value

    def test_apply_when_nothing_is_written(self) -> None:
        assert load(env={}) == Config()

    @pytest.mark.parametrize("name", ["fusee.toml", "fusee.yaml"])
    def test_apply_when_the_file_is_empty(self, name: str) -> None:
        assert load(write(name, ""), {}) == Config()

    def test_apply_to_an_empty_section(self) -> None:
        assert load(write("fusee.yaml", "worker:\n"), {}) == Config()


class TestImmutability:
    def test_a_field_cannot_be_set(self) -> None:
        with pytest.raises(ValidationError):
            Config().worker.threads = 1

    def test_a_table_cannot_be_changed(self) -> None:
        with pytest.raises(TypeError):
            Config().worker.labels["gpu"] = "yes"  # type: ignore[index]

    def test_it_can_be_hashed_and_pickled(self) -> None:
        config = toml("[worker.labels]\ngpu = 'yes'\n")
        assert hash(config) == hash(pickle.loads(pickle.dumps(config)))
        assert pickle.loads(pickle.dumps(config)) == config

    def test_it_can_be_dumped_and_read_again(self) -> None:
        config = toml("[worker.labels]\ngpu = 'yes'\n")
        assert Config.model_validate_json(config.model_dump_json()) == config


class TestWhichFile:
    def test_fusee_toml_comes_before_yaml(self) -> None:
        write("fusee.yaml", "namespace: second")
        write("fusee.toml", "namespace = 'first'")
        assert load(env={}).namespace == "first"

    @pytest.mark.parametrize("name", ["fusee.yaml", "fusee.yml"])
    def test_yaml_is_found_too(self, name: str) -> None:
        write(name, "namespace: found")
        assert load(env={}).namespace == "found"

    def test_fusee_config_names_another(self) -> None:
        write("fusee.toml", "namespace = 'here'")
        write("other.toml", "namespace = 'there'")
        assert load(env={"FUSEE_CONFIG": "other.toml"}).namespace == "there"

    def test_a_given_path_comes_before_fusee_config(self) -> None:
        assert toml("namespace = 'given'", {"FUSEE_CONFIG": "other.toml"}).namespace == "given"

    def test_a_missing_file_is_told_with_who_named_it(self) -> None:
        with pytest.raises(ConfigError, match=r"cannot read no\.toml, named by FUSEE_CONFIG, No such file"):
            load(env={"FUSEE_CONFIG": "no.toml"})

    def test_an_unknown_suffix_is_refused(self) -> None:
        assert refused("", "fusee.ini") == "cannot tell what fusee.ini is; name it .toml, .yaml or .yml"

    def test_a_byte_order_mark_is_no_obstacle(self) -> None:
        assert toml("\ufeffnamespace = 'a'").namespace == "a"

    def test_another_encoding_is_refused_with_its_line(self) -> None:
        Path("fusee.toml").write_bytes("# one\nnamespace = 'é'".encode("latin-1"))
        with pytest.raises(ConfigError, match=r"fusee\.toml:2 is not UTF-8"):
            load(env={})


class TestWhoWins:
    def test_the_environment_over_the_file_and_overrides_over_both(self) -> None:
        text, env = "[worker]\nthreads = 1\n", {"FUSEE_WORKER__THREADS": "2"}
        assert toml(text).worker.threads == 1
        assert toml(text, env).worker.threads == 2
        assert toml(text, env, worker={"threads": 3}).worker.threads == 3

    def test_the_keys_beside_it_stay(self) -> None:
        config = toml("[worker]\nthreads = 1\ngrace = 5\n", {"FUSEE_WORKER__THREADS": "2"})
        assert (config.worker.threads, config.worker.grace) == (2, 5)

    def test_lists_are_replaced_and_tables_merged(self) -> None:
        text = "[worker]\nqueues = ['a']\nlabels = { gpu = 'no', zone = 'x' }\n"
        config = toml(text, {"FUSEE_WORKER__QUEUES": "b,c", "FUSEE_WORKER__LABELS": "gpu=yes"})
        assert config.worker.queues == ("b", "c")
        assert config.worker.labels == {"gpu": "yes", "zone": "x"}

    def test_an_override_of_none_was_not_given(self) -> None:
        assert toml("[worker]\nthreads = 1\n", worker={"threads": None}).worker.threads == 1


class TestEnvironment:
    @pytest.mark.parametrize(
        ("name", "text", "path", "value"),
        [
            ("FUSEE_NAMESPACE", "acme", "namespace", "acme"),
            ("FUSEE_DATABASE__URL", "mysql://u:p@db/x", "database.url", "mysql://u:p@db/x"),
            ("FUSEE_DATABASE__MIGRATE", "false", "database.migrate", False),
            ("FUSEE_DISPATCHER__RETENTION", "1d", "dispatcher.retention", 86400),
            ("FUSEE_API__MAX_BODY", "1MB", "api.max_body", 1_000_000),
            ("FUSEE_EXECUTORS__HTTP__TIMEOUT", "2.5", "executors.http.timeout", 2.5),
            ("FUSEE_WORKER__WORKER_ID", "007", "worker.worker_id", "007"),
            ("FUSEE_WORKER__QUEUES", "mail, billing", "worker.queues", ("mail", "billing")),
            ("FUSEE_WORKER__QUEUES", '["a,b"]', "worker.queues", ("a,b",)),
            ("FUSEE_WORKER__LABELS", '{"gpu": "yes"}', "worker.labels", {"gpu": "yes"}),
            ("FUSEE_WORKER__LABELS__gpu", "yes", "worker.labels", {"gpu": "yes"}),
            ("FUSEE_EXECUTORS__SHELL__ENVIRONMENT__LANG", "C", "executors.shell.environment", {"LANG": "C"}),
            ("FUSEE_LOGGING__LEVEL", "DEBUG", "logging.level", "debug"),
            ("FUSEE_SCHEDULER__POLL_INTERVAL", "2s", "dispatcher.schedule_interval_seconds", 2),
            ("FUSEE_WORKER__THREADS", "", "worker.threads", 32),
        ],
    )
    def test_sets(self, name: str, text: str, path: str, value: object) -> None:
        assert get(load(env={name: text}), path) == value

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("FUSEE_API_KEY", "k"),
            ("FUSEE_URL", "http://localhost:8080"),
            ("FUSEE_TEST_POSTGRES", "postgresql://"),
            ("FUSEE_BENCH_RUNS", "1000"),
            ("FUSEE_SERVICE_HOST", "10.0.0.1"),
            ("FUSEE_API_SERVICE_PORT_HTTP", "8080"),
            ("FUSEE_PORT", "tcp://10.0.0.1:8080"),
            ("FUSEE_API_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("PATH", "/bin"),
        ],
    )
    def test_leaves_alone_what_is_no_setting(self, name: str, text: str) -> None:
        assert load(env={name: text}) == Config()

    @pytest.mark.parametrize(
        ("name", "text", "told"),
        [
            (
                "FUSEE_DATABSE__URL",
                "x",
                "unknown environment variable FUSEE_DATABSE__URL; did you mean FUSEE_DATABASE__URL?",
            ),
            ("FUSEE_WORKER_THREADS", "1", "did you mean FUSEE_WORKER__THREADS?"),
            ("FUSEE_API_KEYS", "1", "did you mean FUSEE_API__KEYS?"),
            ("FUSEE_API_PORT", "8080", "unknown environment variable FUSEE_API_PORT"),
            ("FUSEE_", "1", "unknown environment variable FUSEE_"),
            ("FUSEE_XYZZY", "1", "unset it, or see the reference"),
            (
                "FUSEE_WORKER",
                "{}",
                "names a whole section; set its keys one by one, such as FUSEE_WORKER__ENABLED",
            ),
            (
                "FUSEE_WORKER__THREADS",
                "many",
                "worker.threads from FUSEE_WORKER__THREADS must be a whole number, not 'many'",
            ),
            ("FUSEE_WORKER__QUEUES", "[a", "worker.queues from FUSEE_WORKER__QUEUES must be valid JSON"),
            ("FUSEE_WORKER__LABELS", "[1]", "must be a JSON object"),
            ("FUSEE_WORKER__LABELS", "gpu", "must be written name=value,name=value or as a JSON object"),
            (
                "FUSEE_WORKER__LABELS",
                '{"gpu": 1}',
                "worker.labels.gpu from FUSEE_WORKER__LABELS must be text",
            ),
        ],
    )
    def test_refuses_and_names_the_variable(self, name: str, text: str, told: str) -> None:
        with pytest.raises(ConfigError) as wrong:
            load(env={name: text})
        assert told in str(wrong.value)

    @pytest.mark.parametrize("path", keys())
    def test_every_key_has_a_variable_that_reaches_it(self, path: tuple[str, ...]) -> None:
        with pytest.raises(ConfigError) as wrong:
            load(env={variable(path): "{"}, overrides={"worker": {"threads": 0}})
        assert "unknown" not in str(wrong.value)


class TestDurations:
    @pytest.mark.parametrize(
        ("written", "seconds"),
        [
            ("1s", 1),
            ("250ms", 0.25),
            ("2m", 120),
            ("1h", 3600),
            ("7d", 604800),
            ("1h30m", 5400),
            ("1h 30m", 5400),
            ("1.5h", 5400),
            ("1m500ms", 60.5),
            ("0", 0),
            ("90", 90),
            (90, 90),
            (0.25, 0.25),
        ],
    )
    def test_mean(self, written: object, seconds: float) -> None:
        assert parse_duration(written) == seconds

    @pytest.mark.parametrize(
        "written",
        [
            "",
            " ",
            "s",
            "10 sec",
            "5M",
            "30m1h",
            "1h1h",
            "1 0s",
            "-1s",
            -1,
            "inf",
            float("nan"),
            float("inf"),
            True,
            [],
            None,
            "1e3",
            "٣s",
            10**400,
            "99999999d",
        ],
    )
    def test_refuse(self, written: object) -> None:
        with pytest.raises(ValueError, match="must be a duration"):
            parse_duration(written)

    @given(st.integers(0, 10**12).map(lambda ms: ms / 1000))
    def test_are_written_as_they_are_read(self, seconds: float) -> None:
        assert parse_duration(format_duration(seconds)) == seconds


class TestSizes:
    @pytest.mark.parametrize(
        ("written", "size"),
        [
            ("64KiB", 65536),
            ("1MB", 10**6),
            ("1 MiB", 2**20),
            ("1.5KiB", 1536),
            ("2gib", 2**31),
            ("12B", 12),
            ("65536", 65536),
            (65536, 65536),
            (0, 0),
        ],
    )
    def test_mean(self, written: object, size: int) -> None:
        assert parse_size(written) == size

    @pytest.mark.parametrize(
        "written", ["", "64K", "KiB", "1.5", "0.3KiB", -1, 1.5, True, None, "1e3", 2**64]
    )
    def test_refuse(self, written: object) -> None:
        with pytest.raises(ValueError, match="must be a"):
            parse_size(written)

    @given(st.integers(0, 2**50))
    def test_are_written_as_they_are_read(self, size: int) -> None:
        assert parse_size(format_size(size)) == size


class TestUnknownKeys:
    def test_are_refused_with_file_line_and_nearest_name(self) -> None:
        text = "# one\n[worker]\n\nmax_concurent_tasks = 5\n"
        assert refused(text) == (
            "unknown key worker.max_concurent_tasks at fusee.toml:4; did you mean max_concurrent_tasks?"
        )

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("[wroker]\nthreads = 1", "unknown key wroker at fusee.toml:1; did you mean worker?"),
            (
                "[worker]\nretention = 1",
                "unknown key worker.retention at fusee.toml:2; did you mean dispatcher.retention?",
            ),
            (
                "[executor.http]\ntimeout = 1",
                "unknown key executor.http at fusee.toml:1; did you mean executors.http?",
            ),
            (
                "[metrics]\nxyzzy = 1",
                "unknown key metrics.xyzzy at fusee.toml:2; the keys of metrics are enabled",
            ),
            (
                "executors.http.timeot = 1",
                "unknown key executors.http.timeot at fusee.toml:1; did you mean timeout?",
            ),
            ("worker = {\tthreds = 1 }", "unknown key worker.threds at fusee.toml:1; did you mean threads?"),
        ],
    )
    def test_in_toml(self, text: str, told: str) -> None:
        assert refused(text) == told

    def test_in_yaml(self) -> None:
        text = "worker:\n  threads: 2\n  grce: 1s\n"
        assert refused(text, "c.yaml") == "unknown key worker.grce at c.yaml:3; did you mean grace?"

    def test_in_overrides(self) -> None:
        assert refused("", worker={"thread": 1}) == (
            "unknown key worker.thread from an override; did you mean threads?"
        )


class TestWrongValues:
    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("worker = 5", "worker at fusee.toml:1 must be a section, with any of enabled, worker_id"),
            ("[[worker]]\nthreads = 1", "worker at fusee.toml:1 must be a section"),
            ("[worker]\nthreads = 0", "worker.threads at fusee.toml:2 must be at least 1, not 0"),
            ("[worker]\nthreads = true", "worker.threads at fusee.toml:2 must be a whole number, not true"),
            ("[worker]\nmax_concurrent_tasks = 10001", "must be at most 10000, not 10001"),
            ("[worker]\nworker_id = 1", "worker.worker_id at fusee.toml:2 must be text, in quotes, not 1"),
            ("[worker]\nworker_id = ''", "must be at least 1 character long, not ''"),
            (
                "[worker]\napp = 'jobs'",
                "worker.app at fusee.toml:2 must be a module and a name in it, such as",
            ),
            ("[worker]\nqueues = 'a'", "worker.queues at fusee.toml:2 must be a list"),
            ("[worker]\nqueues = []", "worker.queues at fusee.toml:2 must have at least 1"),
            ("[worker]\nqueues = [\n 'a',\n 7,\n]", "worker.queues[1] at fusee.toml:4 must be text"),
            ("[worker]\nlabels = 'a'", "worker.labels at fusee.toml:2 must be a table of names and values"),
            ("[worker.labels]\na = 'b'\ngpu = 1", "worker.labels.gpu at fusee.toml:3 must be text"),
            ("[worker]\ngrace = '10 sec'", "worker.grace at fusee.toml:2 must be a duration such as 10s"),
            (
                "[worker]\npoll_interval = 0",
                "worker.poll_interval at fusee.toml:2 must be at least 0.001, not 0",
            ),
            ("[api]\nmax_body = '1 parsec'", "api.max_body at fusee.toml:2 must be a size such as 64KiB"),
            (
                "[api]\nenabled = 'perhaps'",
                "api.enabled at fusee.toml:2 must be true or false, not 'perhaps'",
            ),
            (
                "[logging]\nlevel = 'loud'",
                "must be 'debug', 'info', 'warning', 'error' or 'critical', not 'loud'",
            ),
            ("namespace = 'a b'", "namespace at fusee.toml:1 must be 1 to 64 letters"),
        ],
    )
    def test_are_refused_with_their_line(self, text: str, told: str) -> None:
        assert told in refused(text)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("worker:\n  region: no\n", "worker.region at c.yaml:2 must be text, in quotes, not false"),
            ("worker:\n  queues:\n    - a\n    - 7\n", "worker.queues[1] at c.yaml:4 must be text"),
            ("worker:\n  threads:\n", "worker.threads at c.yaml:2 must be a whole number, not nothing"),
            ("- worker\n", "c.yaml:1 must hold sections such as `worker:`, not a list"),
            ("a: &a\n  threads: 0\nworker:\n  <<: *a\n", "worker.threads at c.yaml:2 must be at least 1"),
        ],
    )
    def test_in_yaml_too(self, text: str, told: str) -> None:
        assert told in refused(text, "c.yaml")

    def test_are_told_all_at_once_from_the_top_down(self) -> None:
        text = "[worker]\nthreads = 0\nthreds = 1\n[api]\nmax_body = 1\n"
        told = refused(text, env={"FUSEE_WORKER__GRACE": "x", "FUSEE_NONE": "1"})
        lines = told.splitlines()
        assert lines[0] == "the configuration has 5 problems:"
        assert [line.split(":")[1][0] for line in lines[1:4]] == ["2", "3", "5"]
        assert "FUSEE_WORKER__GRACE" in told
        assert "FUSEE_NONE" in told

    def test_a_broken_file_does_not_hide_a_wrong_variable(self) -> None:
        told = refused("[worker", env={"FUSEE_WORKER__THREADS": "0"})
        assert "fusee.toml:1" in told
        assert "FUSEE_WORKER__THREADS" in told


class TestSyntaxErrors:
    @pytest.mark.parametrize(
        ("name", "text", "told"),
        [
            ("c.toml", "[api]\n\nbind_address = 0.0.0.0:80\n", "c.toml:3 is not valid TOML"),
            (
                "c.toml",
                "[logging]\nlevel = info\n",
                "c.toml:2 is not valid TOML: Expected newline or end of document after a statement; "
                "text needs quotes",
            ),
            (
                "c.toml",
                "[logging]\nlevel = debug\n",
                "c.toml:2 is not valid TOML: Invalid value; text needs quotes",
            ),
            ("c.toml", "[api]\n[worker]\n[api]\n", "c.toml:3 is not valid TOML"),
            ("c.toml", "a = [1,\n\n", "c.toml:1 is not valid TOML"),
            ("c.yaml", "worker:\n\tthreads: 1\n", "c.yaml:2 is not valid YAML"),
            ("c.yaml", "a: 1\nb: [1\nc: 2\n", "c.yaml:3 is not valid YAML"),
            (
                "c.yaml",
                "api:\n  max_body: 1\n  max_body: 2\n",
                "c.yaml:3 is not valid YAML: max_body is written twice",
            ),
            ("c.yaml", "namespace: a\n---\nnamespace: b\n", "is not valid YAML"),
            ("c.yaml", "a: &a\n  b: *a\n", "is not valid YAML: an anchor that holds itself"),
            ("c.yaml", "a: 1\nb: \x01\n", "c.yaml:2 is not valid YAML: a character that YAML does not allow"),
            ("c.yaml", "a: !!python/object:os.system 1\n", "c.yaml:1 is not valid YAML"),
        ],
    )
    def test_name_the_line(self, name: str, text: str, told: str) -> None:
        assert told in refused(text, name)


class TestDatabaseUrl:
    @pytest.mark.parametrize(
        ("url", "dialect"),
        [
            ("sqlite://", "sqlite"),
            ("sqlite:///fusee.db", "sqlite"),
            ("sqlite:////var/lib/fusee.db", "sqlite"),
            ("postgresql://u@h/d", "postgresql"),
            ("postgres://u:p@h:5432/d", "postgresql"),
            ("mysql://u:p@h/d", "mysql"),
            ("mariadb://u:p@h/d", "mysql"),
        ],
    )
    def test_is_accepted(self, url: str, dialect: str) -> None:
        assert load(env={"FUSEE_DATABASE__URL": url}).database.dialect == dialect

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("oracle://u:secret@h/d", "must begin with sqlite://, postgresql:// or mysql://"),
            ("u:secret@h", "must begin with sqlite://"),
            ("postgresql+asyncpg://u:secret@h/d", "must begin with postgresql://, without a driver"),
            ("sqlite://fusee.db", "must have three slashes before a relative path (sqlite:///fusee.db)"),
            ("mysql://", "must name a host and a database"),
        ],
    )
    def test_is_refused_without_showing_it(self, url: str, told: str) -> None:
        text = refused(f"[database]\nurl = '{url}'\n")
        assert text.startswith(f"database.url at fusee.toml:2 {told}")
        assert "secret" not in text

    @pytest.mark.parametrize(
        ("url", "safe"),
        [
            ("postgresql://u:secret@h/d", "postgresql://u:***@h/d"),
            ("postgresql://u:se/cr@et@h/d", "postgresql://u:***@h/d"),
            ("postgresql://:secret@h/d", "postgresql://:***@h/d"),
            ("postgresql://h/d?user=u&password=secret&x=1", "postgresql://h/d?user=u&password=***&x=1"),
            ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
            ("sqlite:///fusee.db", "sqlite:///fusee.db"),
        ],
    )
    def test_never_shows_its_password(self, url: str, safe: str) -> None:
        config = load(env={"FUSEE_DATABASE__URL": url})
        assert config.database.safe_url == safe
        assert f"url={safe!r}" in repr(config)
        assert f"url={safe!r}" in str(config)


class TestSecrets:
    def test_are_not_shown(self) -> None:
        text = f"[api]\nkeys = ['{DIGEST}']\n[executors.shell.environment]\nTOKEN = 'hush'\n"
        shown = repr(toml(text))
        assert DIGEST not in shown
        assert "hush" not in shown

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("c.toml", "[api]\nkeys = ['hush']"),
            ("c.toml", "[executors.shell.environment]\nTOKEN = ['hush']"),
            ("c.yaml", "executors:\n  shell:\n    environment:\n      TOKEN: *hush\n"),
        ],
    )
    def test_are_not_shown_when_wrong(self, name: str, text: str) -> None:
        assert "hush" not in refused(text, name)

    def test_are_not_shown_by_the_models_either(self) -> None:
        with pytest.raises(ValidationError) as wrong:
            Config.model_validate({"database": {"url": "oracle://u:hush@h/d"}})
        assert "hush" not in str(wrong.value)

    def test_a_key_is_given_by_its_digest(self) -> None:
        assert toml(f"[api]\nkeys = ['{DIGEST.upper()}']\n").api.keys == (DIGEST,)
        told = refused(f"[api]\nkeys = [\n  '{DIGEST}',\n  'my-key',\n]\n")
        assert told.startswith("api.keys[1] at fusee.toml:4 must be a role (viewer, operator or admin), a")


class TestLease:
    @pytest.mark.parametrize(
        ("heartbeat", "lease_ttl", "expected"),
        [("1s", None, 30), ("10s", None, 30), ("30s", None, 90), ("10s", "30s", 30), ("100ms", "300ms", 0.3)],
    )
    def test_outlives_three_heartbeats(self, heartbeat: str, lease_ttl: str | None, expected: float) -> None:
        worker = {"heartbeat_interval_seconds": heartbeat, "lease_ttl": lease_ttl}
        assert load(env={}, overrides={"worker": worker}).worker.lease_ttl == expected

    def test_is_refused_when_it_was_written_too_short(self) -> None:
        text = "[worker]\nheartbeat_interval_seconds = 11\nlease_ttl = '30s'\n"
        assert refused(text) == (
            "worker.lease_ttl at fusee.toml:3 must be at least 33s, three times "
            "worker.heartbeat_interval_seconds, not '30s'; raise it, or leave it out to follow the heartbeat"
        )

    def test_says_nothing_when_the_heartbeat_itself_is_wrong(self) -> None:
        told = refused("[worker]\nheartbeat_interval_seconds = 'often'\n")
        assert told.startswith("worker.heartbeat_interval_seconds at fusee.toml:2 must be a duration")
        assert "\n" not in told


class TestBindAddress:
    @pytest.mark.parametrize(
        ("address", "host", "port", "loopback"),
        [
            ("127.0.0.1:8080", "127.0.0.1", 8080, True),
            ("127.8.9.10:1", "127.8.9.10", 1, True),
            ("localhost:0", "localhost", 0, True),
            ("[::1]:8080", "::1", 8080, True),
            ("0.0.0.0:8080", "0.0.0.0", 8080, False),
            ("[::]:8080", "::", 8080, False),
            ("10.0.0.1:8080", "10.0.0.1", 8080, False),
            ("fusee.internal:443", "fusee.internal", 443, False),
            ("localhost.evil.example:80", "localhost.evil.example", 80, False),
        ],
    )
    def test_is_host_and_port(self, address: str, host: str, port: int, loopback: bool) -> None:
        api = load(env={"FUSEE_API__BIND_ADDRESS": address}).api
        assert (api.host, api.port, api.loopback) == (host, port, loopback)

    @pytest.mark.parametrize(
        "address",
        [
            "8080",
            ":8080",
            "::1:8080",
            "127.0.0.1",
            "h:",
            "h:http",
            "h:65536",
            "[::1]",
            "[h]:1",
            "http://h:1",
            "a b:1",
        ],
    )
    def test_is_refused(self, address: str) -> None:
        assert refused(f"[api]\nbind_address = '{address}'").startswith(
            "api.bind_address at fusee.toml:2 must "
        )


class TestPublicUrl:
    @pytest.mark.parametrize(
        ("settings", "base"),
        [
            ({}, "http://127.0.0.1:8080"),
            ({"bind_address": "10.1.2.3:80"}, "http://10.1.2.3:80"),
            ({"bind_address": "[::1]:80"}, "http://[::1]:80"),
            ({"bind_address": "0.0.0.0:80"}, None),
            ({"bind_address": "[::]:80"}, None),
            ({"bind_address": "127.0.0.1:0"}, None),
            ({"bind_address": "0.0.0.0:80", "public_url": "https://f.example/"}, "https://f.example"),
            ({"public_url": "http://proxy:8443/fusee"}, "http://proxy:8443/fusee"),
        ],
    )
    def test_is_where_services_call_back(self, settings: dict[str, str], base: str | None) -> None:
        assert load(env={}, overrides={"api": settings}).api.base_url == base

    @pytest.mark.parametrize(
        "url",
        [
            "fusee.example",
            "ftp://f.example",
            "https://",
            "https:///path",
            "https://me:pw@f.example",
            "https://f.example/?a=b",
            "https://f.example/#a",
            "https://f.example:99999",
            "https://f.example:0",
            "https://[::1",
            "https://f.example/a b",
        ],
    )
    def test_is_refused(self, url: str) -> None:
        assert refused(f"[api]\npublic_url = '{url}'").startswith("api.public_url at fusee.toml:2 must ")


class TestPrivateHosts:
    def test_are_names_addresses_or_networks(self) -> None:
        hosts = ["127.0.0.0/8", "10.1.2.3", "svc.internal", "::1", "fd00::/8"]
        assert toml(f"[executors.http]\nallow_private = {hosts}").executors.http.allow_private == tuple(hosts)

    @pytest.mark.parametrize(
        ("host", "told"),
        [
            ("10.1.2.3/8", "must be a network without host bits, not '10.1.2.3/8'; write 10.0.0.0/8"),
            ("10.0.0.0/33", "must be a network such as 10.0.0.0/8"),
            ("http://svc", "without scheme or port"),
            ("svc:80", "without scheme or port"),
            ("*", "must be a host name"),
            ("", "must be a host name"),
        ],
    )
    def test_are_refused(self, host: str, told: str) -> None:
        assert told in refused(f"[executors.http]\nallow_private = ['{host}']")


class TestLinesOfToml:
    def test_are_found_in_any_writing(self) -> None:
        text = '''\
# [not.a.table]
top = """
[nor] = 1
ends in quotes"""""  # here

"quoted key".'second.part' = 'x # no comment'
[ a . b ]   # spaced
multi = [ # [
  1, "two ] \\" ",
  [ 3,
    4 ],
]
inline = { x = 1, y.z = { deep = [
  2024-01-01 10:00:00, true] } }
[[many]]
literal = \'\'\'
it's = 1
\'\'\'
last = 1e3
'''
        tomllib.loads(text)
        assert toml_lines(text.replace("\n", "\r\n")) == toml_lines(text)
        assert toml_lines(text) == {
            ("top",): 2,
            ("quoted key",): 6,
            ("quoted key", "second.part"): 6,
            ("a",): 7,
            ("a", "b"): 7,
            ("a", "b", "multi"): 8,
            ("a", "b", "multi", 0): 9,
            ("a", "b", "multi", 1): 9,
            ("a", "b", "multi", 2): 10,
            ("a", "b", "multi", 2, 0): 10,
            ("a", "b", "multi", 2, 1): 11,
            ("a", "b", "inline"): 13,
            ("a", "b", "inline", "x"): 13,
            ("a", "b", "inline", "y"): 13,
            ("a", "b", "inline", "y", "z"): 13,
            ("a", "b", "inline", "y", "z", "deep"): 13,
            ("a", "b", "inline", "y", "z", "deep", 0): 14,
            ("a", "b", "inline", "y", "z", "deep", 1): 14,
            ("many",): 15,
            ("many", "literal"): 16,
            ("many", "last"): 19,
        }


class TestDocumentation:
    @pytest.mark.parametrize("path", keys())
    def test_every_key_says_what_it_means(self, path: tuple[str, ...]) -> None:
        description = keys()[path].field.description or ""
        assert description.endswith(".")
        assert "|" not in description

    @pytest.mark.parametrize("path", [path for path, field in groups().items() if field])
    def test_every_section_says_what_it_is(self, path: tuple[str, ...]) -> None:
        field = groups()[path]
        assert field is not None
        assert field.description

    def test_the_page_is_up_to_date(self) -> None:
        page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
        assert page == reference(), "run python tools/document_config.py"

    def test_the_page_s_sample_is_the_defaults(self) -> None:
        sample = reference().partition("```toml\n")[2].partition("```")[0]
        assert toml(sample) == Config()

    def test_the_example_sets_nothing_and_names_every_key(self) -> None:
        assert toml(example_toml()) == Config()
        for key in keys():
            assert f"# {key[-1]} = " in example_toml()

    def test_the_example_can_be_uncommented(self) -> None:
        names = {path[-1] for path in keys()}
        lines = example_toml().splitlines()
        bare = [line[2:] if line[2:].partition(" = ")[0] in names else line for line in lines]
        config = toml("\n".join(bare), worker={"worker_id": None})
        assert config.worker.worker_id == "worker-001"
        assert config.api.public_url == "https://fusee.example.com"
        assert config.api.model_copy(update={"public_url": None}) == Config().api
