"""Escapes through the environment: what a payload may set, what a program gets, and what it can read of us.

The corpus runs each escape for real where the program is installed: once as an operator who allows the name
would have it (the escape works, so the test means something), once with the default (the run is refused, and
the mark that the escape would leave is not there).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pwd
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fusee.config import ExecutorsConfig, ShellConfig, load
from fusee.config.environment_names import CHOOSE_CODE
from fusee.engine.model.outcome import Effect, End
from fusee.engine.worker.executor import Job
from fusee.errors import ConfigError
from fusee.executors.account import Account, find_account
from fusee.executors.http.request import Reach
from fusee.executors.registry import check_payload, configured_executors
from fusee.executors.shell import ShellExecutor


@dataclass(frozen=True)
class Escape:
    """`{mark}` is a file that the escape creates, `{dir}` a folder with the files that it needs."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)


TOUCH = "touch {mark}"
PYTHON_TOUCH = "import pathlib; pathlib.Path('{mark}').touch()"
NODE_TOUCH = "require('fs').writeFileSync('{mark}', '')"
CORPUS = {
    "sh PATH": Escape(("sh", "-c", "date"), {"PATH": "{dir}"}, {"date": f"#!/bin/sh\n/bin/{TOUCH}\n"}),
    "sh ENV": Escape(("sh", "-i", "-c", "true"), {"ENV": "{dir}/rc"}, {"rc": TOUCH}),
    "bash BASH_ENV": Escape(("bash", "-c", "true"), {"BASH_ENV": "{dir}/rc"}, {"rc": TOUCH}),
    "bash BASH_FUNC": Escape(("bash", "-c", "hello"), {"BASH_FUNC_hello%%": "() {{ touch {mark}; }}"}),
    "python PYTHONPATH": Escape(
        (sys.executable, "-c", "import json"), {"PYTHONPATH": "{dir}"}, {"json.py": PYTHON_TOUCH}
    ),
    "python PYTHONWARNINGS": Escape(
        (sys.executable, "-c", "pass"),
        {"PYTHONPATH": "{dir}", "PYTHONWARNINGS": "ignore::evil.Warned"},
        {"evil.py": PYTHON_TOUCH + "\nclass Warned(Warning): ..."},
    ),
    "python PYTHONBREAKPOINT": Escape(
        (sys.executable, "-c", "breakpoint()"),
        {"PYTHONBREAKPOINT": "evil.run", "PYTHONPATH": "{dir}"},
        {"evil.py": "def run(): " + PYTHON_TOUCH},
    ),
    "perl PERL5OPT": Escape(
        ("perl", "-e", "1"), {"PERL5OPT": "-I{dir} -MEvil"}, {"Evil.pm": "open(F, '>{mark}'); 1;"}
    ),
    "perl PERL5DB": Escape(
        ("perl", "-d", "-e", "1"), {"PERL5DB": "BEGIN {{ open(F, '>{mark}'); }} sub DB::DB {{}}"}
    ),
    "ruby RUBYOPT": Escape(
        ("ruby", "-e", "1"), {"RUBYOPT": "-r{dir}/evil"}, {"evil.rb": "File.write('{mark}', '')"}
    ),
    "node NODE_OPTIONS": Escape(
        ("node", "-e", "1"), {"NODE_OPTIONS": "--require {dir}/evil.js"}, {"evil.js": NODE_TOUCH}
    ),
    "java JAVA_TOOL_OPTIONS": Escape(
        ("java", "-version"), {"JAVA_TOOL_OPTIONS": "-Xlog:all=warning:file={mark}"}
    ),
    "java JDK_JAVA_OPTIONS": Escape(
        ("java", "-version"), {"JDK_JAVA_OPTIONS": "-Xlog:all=warning:file={mark}"}
    ),
    "git GIT_SSH_COMMAND": Escape(
        ("git", "ls-remote", "ssh://host.invalid/x"), {"GIT_SSH_COMMAND": "touch {mark} #"}
    ),
    "git GIT_CONFIG": Escape(
        ("git", "evil"),
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "alias.evil", "GIT_CONFIG_VALUE_0": "!touch {mark}"},
    ),
    "git HOME": Escape(
        ("git", "evil"), {"HOME": "{dir}"}, {".gitconfig": '[alias]\nevil = "!touch {mark}"\n'}
    ),
    "git GIT_EXEC_PATH": Escape(
        ("git", "evil"), {"GIT_EXEC_PATH": "{dir}"}, {"git-evil": "#!/bin/sh\ntouch {mark}\n"}
    ),
    "any LD_DEBUG": Escape(
        ("true",), {"LD_PRELOAD": "{dir}/none.so", "LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": "{mark}"}
    ),
}  # fmt: skip


def prepared(escape: Escape, folder: Path) -> tuple[Path, dict[str, str]]:
    """(the mark, the environment), with the files in place."""
    mark = folder / "mark"
    for name, text in escape.files.items():
        file = folder / name
        file.write_text(text.format(mark=mark, dir=folder))
        file.chmod(0o755)
    return mark, {name: text.format(mark=mark, dir=folder) for name, text in escape.env.items()}


def left(mark: Path) -> bool:
    return any(mark.parent.glob("mark*"))  # the loader appends the process id


def clear(mark: Path) -> None:
    for file in mark.parent.glob("mark*"):
        file.unlink()


@pytest.mark.parametrize("name", CORPUS)
async def test_no_escape_passes(job: Callable[..., Job], tmp_path: Path, name: str) -> None:
    escape = CORPUS[name]
    program = escape.argv[0]
    mark, env = prepared(escape, tmp_path)
    guarded = ShellExecutor(enabled=True, allow=[program])
    installed = shutil.which(program) is not None
    if installed:
        open_to_all = ShellExecutor(enabled=True, settable={program: " ".join(env)})
        await open_to_all.execute(job(argv=list(escape.argv), env=env))
        await open_to_all.close()
        assert left(mark), f"{name} is no escape on this machine: the corpus proves nothing by it"
        clear(mark)
    else:  # the name is checked all the same, with a program of that name that would leave the mark
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / program).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (folder / program).chmod(0o755)
        guarded = ShellExecutor(
            enabled=True, allow=[program], environment={"PATH": f"{folder}:{os.environ['PATH']}"}
        )
    for setting in env:
        ended = await guarded.execute(job(argv=list(escape.argv), env={setting: env[setting]}))
        assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE), setting
        assert f"env may not set '{setting}' for '{program}'" in (ended.error or "")
        assert "executors.shell.settable allows JOB_* there; add the name" in (ended.error or "")
    await guarded.close()
    assert not left(mark)


@pytest.mark.parametrize(
    "name", sorted({name for escape in CORPUS.values() for name in escape.env} | set(CHOOSE_CODE))
)
@pytest.mark.parametrize("executor", ["server", "worker"])
async def test_no_name_of_the_corpus_is_settable(job: Callable[..., Job], name: str, executor: str) -> None:
    payload = {"argv": ["echo"], "env": {name: "x"}}
    if executor == "server":
        settings = ExecutorsConfig(shell=ShellConfig(enabled=True))
        with pytest.raises(ValueError, match="env may not set"):
            check_payload("shell", payload, settings, Reach(()))
    else:
        ended = await ShellExecutor(enabled=True).execute(job(**payload))
        assert ended.end is End.ABANDONED and "env may not set" in (ended.error or "")


async def test_a_program_may_be_given_what_its_entry_names(job: Callable[..., Job], tmp_path: Path) -> None:
    script = tmp_path / "report"
    script.write_text("#!/bin/sh\necho $PGHOST $JOB_DAY\n")
    script.chmod(0o755)
    shell = ShellExecutor(
        enabled=True, settable={"*": "JOB_*", f"{tmp_path}/": "PGHOST, PGPORT", "env": "PGUSER"}
    )
    ended = await shell.execute(job(argv=[str(script)], env={"PGHOST": "db", "JOB_DAY": "monday"}))
    assert ended.output == "db monday\n"
    for argv, name in (
        (["env"], "PGHOST"),
        ([str(script)], "PGUSER"),
        (["env"], "JOB_%%"),
        (["env"], "FUSEE_JOB_X"),
    ):
        ended = await shell.execute(job(argv=argv, env={name: "x"}))
        assert ended.end is End.ABANDONED and f"env may not set '{name}'" in (ended.error or "")
    await shell.close()


@pytest.mark.parametrize(
    ("settable", "payload", "passes"),
    [
        ({"/usr/bin/pg_dump": "PGHOST"}, {"argv": ["pg_dump"]}, True),  # which file it is, the worker decides
        ({"/opt/jobs/": "PGHOST"}, {"argv": ["pg_dump"]}, True),
        ({"pg_dump": "PGHOST"}, {"argv": ["pg_restore"]}, False),
        ({"/opt/jobs/": "PGHOST"}, {"argv": ["/opt/jobs/../x"]}, False),
        ({"/opt/jobs/": "PGHOST"}, {"argv": ["x"], "cwd": "/opt/jobs"}, True),
        ({"/opt/jobs/": "PGHOST"}, {"argv": ["./x"], "cwd": "/opt/other"}, False),
    ],
)
def test_a_server_refuses_what_no_worker_would_take(
    settable: dict[str, str], payload: dict[str, object], passes: bool
) -> None:
    settings = ExecutorsConfig(shell=ShellConfig(enabled=True, settable=settable))
    payload = {**payload, "env": {"PGHOST": "db"}}
    if passes:
        check_payload("shell", payload, settings, Reach(()))
    else:
        with pytest.raises(ValueError, match=r"executors\.shell\.settable allows nothing there"):
            check_payload("shell", payload, settings, Reach(()))


@pytest.mark.parametrize("pattern", ["P*", "*PATH", "GIT_*", "LD_*", "PYTHON*", "*_OPTIONS", "BASH*"])
def test_a_pattern_that_covers_an_escape_is_refused_in_the_configuration(pattern: str) -> None:
    with pytest.raises(ConfigError, match="whoever creates a run chooses the code"):
        load(env={}, overrides={"executors": {"shell": {"settable": {"git": pattern}}}})


def test_everything_can_be_allowed_but_only_by_saying_so() -> None:
    config = load(env={}, overrides={"executors": {"shell": {"settable": {"*": "*"}}}})
    assert dict(config.executors.shell.settable) == {"*": "*"}


# --- what a program gets of the worker ---------------------------------------------------------------


async def test_only_listed_names_of_the_worker_are_passed_on(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FUSEE_DATABASE__URL", "AWS_SECRET_ACCESS_KEY", "LC_TIME", "LC_ALL", "TZ", "SITE_A"):
        monkeypatch.setenv(name, f"canary of {name}")
    for inherit, passed in (
        (ShellConfig().inherit, {"LC_TIME", "LC_ALL", "TZ"}),
        (("SITE_*",), {"SITE_A"}),
        (("*",), {"AWS_SECRET_ACCESS_KEY", "LC_TIME", "LC_ALL", "TZ", "SITE_A"}),
        (("FUSEE_DATABASE__URL",), {"FUSEE_DATABASE__URL"}),
    ):
        shell = ShellExecutor(enabled=True, inherit=inherit)
        ended = await shell.execute(job(argv=["env"]))
        await shell.close()
        seen = {line.partition("=")[0] for line in (ended.output or "").splitlines() if "=canary of" in line}
        assert seen == passed, inherit


# --- another user, and what it can read of us --------------------------------------------------------

NOBODY = pwd.getpwnam("nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@as_root
async def test_programs_run_as_the_configured_user_without_other_groups(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    shell = configured_executors(
        ExecutorsConfig(shell=ShellConfig(enabled=True, user="nobody")), "default", None
    )["shell"]
    code = "import os; print(os.getresuid(), os.getresgid(), os.getgroups(), os.environ['USER'], os.getcwd())"
    ended = await shell.execute(job(argv=["/usr/bin/env", "python3", "-c", code], stdin="x"))
    if ended.end is not End.SUCCEEDED:  # the interpreter of the tests may be closed to others
        ended = await shell.execute(job(argv=["sh", "-c", "id -u; id -g; id -G; echo $USER"]))
        assert ended.output == f"{NOBODY.pw_uid}\n{NOBODY.pw_gid}\n{NOBODY.pw_gid}\nnobody\n"
    else:
        ids = (NOBODY.pw_uid,) * 3, (NOBODY.pw_gid,) * 3
        assert (ended.output or "").startswith(f"{ids[0]} {ids[1]} [] nobody /")
    await shell.close()


@as_root
async def test_a_program_of_another_user_is_stopped_to_the_last(
    job: Callable[..., Job], until: Callable[..., object], alive: Callable[[int], bool]
) -> None:
    account = Account("nobody", NOBODY.pw_uid, NOBODY.pw_gid, "/")
    shell = ShellExecutor(enabled=True, account=account)
    this = job(argv=["sh", "-c", "trap '' TERM; sleep 60 & echo $!; wait; wait"], grace=0.2)
    running = asyncio.create_task(shell.execute(this))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(int((this.output or "").split()[0]))
    await shell.close()


@as_root
@pytest.mark.parametrize(
    ("user", "uid", "gid"),
    [
        ("nobody", NOBODY.pw_uid, NOBODY.pw_gid),
        (f"{NOBODY.pw_uid}", NOBODY.pw_uid, NOBODY.pw_gid),
        ("nobody:0", NOBODY.pw_uid, 0),
        ("54321:54322", 54321, 54322),
    ],
)
def test_a_user_is_named_or_numbered(user: str, uid: int, gid: int) -> None:
    found = find_account(user)
    assert (found.uid, found.gid) == (uid, gid)


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("no-such-user", "is no user of this machine: create it"),
        ("54321", "needs its group as well, such as 1500:1500"),
        ("nobody:no-such-group", "this machine has no group 'no-such-group'"),
    ],
)
def test_a_user_that_is_not_there_is_refused(user: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"executors\.shell\.user") as refusal:
        find_account(user)
    assert says in str(refusal.value)


SPY = """
    for process in /proc/[0-9]*; do
        (tr '\\0' '\\n' < $process/environ) 2>/dev/null | grep -a canary-of-the-worker
    done
    cat /proc/$PPID/environ > /dev/null 2>&1 && echo read the environment
    head -c 1 /proc/$PPID/maps > /dev/null 2>&1 && echo read the map of the memory
    readlink /proc/$PPID/fd/1 > /dev/null 2>&1 && echo read the open files
    echo looked
"""
WORKER = """
    import asyncio, os, sys
    from fusee.config import ExecutorsConfig, ShellConfig
    from fusee.engine.worker.executor import Job
    from fusee.executors import registry

    spy, user, private = sys.argv[1:]
    if not private:
        registry.conceal = lambda: None

    async def main():
        settings = ExecutorsConfig(shell=ShellConfig(enabled=True, user=user or None))
        shell = registry.configured_executors(settings, "default", None)["shell"]
        ended = await shell.execute(Job(1, 1, "t", "q", {"argv": ["sh", "-c", spy]}, None, 5))
        print(ended.output or ended.error)
        await shell.close()

    asyncio.run(main())
"""
PR_CAPBSET_DROP = 24
READS_ALL = (19, 21, 38)
"""CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON."""


def as_an_ordinary_user() -> None:
    """Root that may trace any process reads everything; without these rights it is as any other user."""
    for capability in READS_ALL if os.geteuid() == 0 else ():
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


async def spied(*, user: str = "", private: bool = True) -> list[str]:
    """What a program reports that was started by a worker with a secret in its environment."""
    worker = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-c",
            textwrap.dedent(WORKER),
            textwrap.dedent(SPY),
            user,
            "private" if private else "",
        ),
        env={**os.environ, "FUSEE_DATABASE__URL": "postgresql://canary-of-the-worker@db/fusee"},
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=as_an_ordinary_user,
    )
    out, _ = await worker.communicate()
    return out.decode().split("\n")


async def test_a_program_of_the_workers_own_user_reads_nothing_of_it_in_proc() -> None:
    assert await spied() == ["looked", "", ""]


async def test_the_spy_is_not_blind() -> None:
    """Without what hides the worker, the same program reads it all."""
    seen = await spied(private=False)
    assert "FUSEE_DATABASE__URL=postgresql://canary-of-the-worker@db/fusee" in seen
    assert {"read the environment", "read the map of the memory", "read the open files"} <= set(seen)


@as_root
async def test_a_program_of_another_user_reads_nothing_of_a_worker_that_is_root() -> None:
    assert await spied(user="nobody", private=False) == ["looked", "", ""]
