"""Light mode: OpenCode and the service in the background, for one user, without root.

Where there is a `systemd --user`, it runs `opencode-a2a up` and restarts it. Elsewhere a supervisor
does: a process in a session of its own, so that it survives the logout. It writes the log, begins a
new file before the old one gets large, and restarts what has ended, after longer and longer pauses.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pwd
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from ..paths import make_private_directory, program_path, state_home
from .layout import INSTANCE_NAME
from .resources import DeployError

LOG_BYTES, LOG_FILES = 5_000_000, 4
FIRST_PAUSE, LONGEST_PAUSE, STABLE_SECONDS = 0.5, 60.0, 30.0
LINGER = Path("/var/lib/systemd/linger")  # has a file for each user whose systemd outlives a logout
STOP_SECONDS, START_SECONDS, POLL = 320.0, 10.0, 0.05
PR_SET_PDEATHSIG = 1
# What a unit of `systemd --user` gets of the environment: how to find programs and files.
KEPT_VARIABLES = (
    "PATH",
    "OPENCODE_COMMAND",
    *(f"XDG_{n}_HOME" for n in ("STATE", "CONFIG", "DATA")),
)
UNIT = """\
# Written by `opencode-a2a deploy light`.
[Unit]
Description=opencode-a2a of {name}

[Service]
ExecStart={command}
WorkingDirectory={directory}
Environment={environment}
Restart=always
RestartSec=1
KillMode=mixed
# A2A_SHUTDOWN_GRACE_SECONDS can be 300.
TimeoutStopSec=310

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True)
class LightSettings:
    """What was asked for: kept, so that `restart` and `start` without options do the same."""

    name: str
    directory: str
    arguments: tuple[str, ...] = ()  # of `opencode-a2a up`: each option and its value

    def with_options(self, given: Mapping[str, str]) -> LightSettings:
        """What is not given stays as it was."""
        options = dict(zip(self.arguments[::2], self.arguments[1::2], strict=True)) | dict(given)
        return replace(self, arguments=tuple(word for pair in options.items() for word in pair))

    def check(self) -> None:
        if not Path(self.directory).is_dir():
            raise DeployError(f"{self.directory}: there is no such directory.")


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told from a later one with the same pid by the time of its start."""

    pid: int
    started: int
    boot: str

    @classmethod
    def own(cls) -> Process:
        return cls(os.getpid(), start_time(os.getpid()), boot_id())

    @property
    def lives(self) -> bool:
        try:
            return self.boot == boot_id() and start_time(self.pid) == self.started
        except (OSError, ValueError):
            return False


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since the boot; 0 if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) if fields[0] not in "ZX" else 0
    return 0


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Folder:
    """The files of one name."""

    def __init__(self, name: str) -> None:
        if not INSTANCE_NAME.fullmatch(name):
            raise DeployError(f"{name!r} must be small letters, digits and `-`, at most 28.")
        self.path = state_home() / "light" / name
        self.name = name
        self.log = self.path / "log"
        self._pid, self._settings_file = self.path / "pid.json", self.path / "settings.json"
        self._lock: int | None = None

    def save(self, settings: LightSettings) -> None:
        make_private_directory(self.path)
        self._settings_file.write_text(json.dumps(asdict(settings)))

    @property
    def settings(self) -> LightSettings | None:
        try:
            raw = json.loads(self._settings_file.read_text())
            return LightSettings(raw["name"], raw["directory"], tuple(raw["arguments"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise DeployError(
                f"{self._settings_file} is damaged. Remove it, then `start`."
            ) from None

    @property
    def supervisor(self) -> Process | None:
        """The one that runs."""
        try:
            found = Process(**json.loads(self._pid.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return found if found.lives else None

    def enter(self) -> None:
        """As its only supervisor, until `leave`, or until this process ends."""
        lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise DeployError(f"{self.name} has a supervisor already.") from None
        self._lock = lock
        fresh = self._pid.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(Process.own())))
        fresh.replace(self._pid)

    def leave(self) -> None:
        self._pid.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def start(folder: Folder, settings: LightSettings) -> str:
    """Start, in the background; says where."""
    if is_running(folder):
        raise DeployError(f"{folder.name} is running already. `restart` takes new options.")
    settings.check()
    folder.save(settings)
    if has_systemd():
        _write_unit(folder, settings)
        _systemctl("enable", "--now", _unit(folder.name))
        found = f"systemd runs it: systemctl --user status {_unit(folder.name)}"
        return (
            found
            + logout_remark(pwd.getpwuid(os.getuid()).pw_name)
            + environment_remark(os.environ)
        )
    subprocess.Popen(
        [sys.executable, "-P", "-m", "opencode_a2a.deploy.light", folder.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # it has no terminal that could take it along
    )
    deadline = time.monotonic() + START_SECONDS
    while folder.supervisor is None:
        if time.monotonic() > deadline:
            raise DeployError(f"the supervisor did not start; see {folder.log}")
        time.sleep(POLL)
    return f"its log: {folder.log}"


def logout_remark(user: str, linger: Path = LINGER) -> str:
    """What to do so that it goes on after a logout, where systemd would end it."""
    if (linger / user).exists():
        return ""
    return (
        "\nIt ends when you log out, as systemd ends all of yours then. To keep it running: "
        f"loginctl enable-linger (if that is denied, as root: loginctl enable-linger {user})"
    )


def environment_remark(environment: Iterable[str]) -> str:
    """Which settings and keys among these variables a unit of `systemd --user` does not get."""
    missing = sorted(n for n in environment if n.startswith("A2A_") or n.endswith("_API_KEY"))
    if not missing:
        return ""
    return (
        f"\nIt does not get these of your environment: {', '.join(missing)}. Use --config for "
        "settings and --secrets, or `opencode auth login`, for keys."
    )


def stop(folder: Folder) -> bool:
    """Whether there was something to stop. Returns when all has ended."""
    if has_systemd() and _unit_file(folder.name).exists():
        was_running = _is_active(folder.name)
        _systemctl("disable", "--now", _unit(folder.name))
        _unit_file(folder.name).unlink()
        _systemctl("daemon-reload")
        return was_running
    found = folder.supervisor
    if found is None:
        return False
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(found.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while found.lives:
        if time.monotonic() > deadline:
            raise DeployError(f"process {found.pid} does not end. To kill it: kill -9 {found.pid}")
        time.sleep(POLL)
    return True


def is_running(folder: Folder) -> bool:
    return folder.supervisor is not None or (has_systemd() and _is_active(folder.name))


def log_command(folder: Folder, *, follow: bool, lines: int) -> list[str]:
    if has_systemd() and _unit_file(folder.name).exists():
        unit = ["--user-unit", _unit(folder.name)]
        return ["journalctl", *unit, "-n", str(lines), *(["-f"] if follow else [])]
    return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(folder.log)]


def supervise(folder: Folder) -> None:
    """Keep `opencode-a2a up` running until SIGTERM. Runs in a process of its own."""
    settings = folder.settings
    if settings is None:
        raise DeployError(f"{folder.name} was never started.")
    folder.enter()
    try:
        Supervisor(up_command(settings), Log(folder.log)).run()
    finally:
        folder.leave()


def up_command(settings: LightSettings) -> list[str]:
    """-P keeps Python from loading what the agent has written to its workspace."""
    return [
        sys.executable,
        "-P",
        "-m",
        "opencode_a2a",
        "up",
        *settings.arguments,
        settings.directory,
    ]


class Log:
    """A file that is put aside before it gets large; the oldest is removed."""

    def __init__(self, path: Path, *, most_bytes: int = LOG_BYTES, files: int = LOG_FILES) -> None:
        self._path, self._most_bytes, self._files = path, most_bytes, files

    def write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk is no reason to stop
            if self._path.exists() and self._path.stat().st_size + len(data) > self._most_bytes:
                self._rotate()
            descriptor = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "ab", buffering=0) as file:
                file.write(data)

    def _rotate(self) -> None:
        names = [self._path, *(Path(f"{self._path}.{n}") for n in range(1, self._files))]
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            if newer.exists():
                newer.replace(older)


class Supervisor:
    """Runs a command again and again, until it is told to stop."""

    def __init__(self, command: Sequence[str], log: Log) -> None:
        self._command, self._log = command, log
        self._child: subprocess.Popen[bytes] | None = None
        # A handler of signals interrupts this thread anywhere, so it must wait for no lock.
        self._signals: list[int] = []  # those that say stop

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        pause = FIRST_PAUSE
        while not self._signals:
            since = time.monotonic()
            code = self._once()
            if self._signals:
                return
            if time.monotonic() - since > STABLE_SECONDS:
                pause = FIRST_PAUSE
            said = f"supervisor: ended with code {code}; it is started again in {pause:g} s\n"
            self._log.write(said.encode())
            self._wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._signals and time.monotonic() < until:
            time.sleep(POLL)

    def _once(self) -> int:
        with subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        ) as child:
            self._child = child
            if self._signals:  # a signal has come in between
                child.terminate()
            assert child.stdout is not None
            for line in child.stdout:
                self._log.write(line)
        self._child = None
        return child.returncode

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if self._child is not None:
            self._child.terminate()


def _end_with_parent() -> None:
    """Without its supervisor nobody would restart it, or know that it runs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def has_systemd() -> bool:
    """Whether this user has a systemd of their own that answers."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return Path(runtime, "systemd", "private").exists()


def _unit(name: str) -> str:
    return f"opencode-a2a-{name}.service"


def _unit_file(name: str) -> Path:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "systemd" / "user" / _unit(name)


def _write_unit(folder: Folder, settings: LightSettings) -> None:
    command = unit_words(up_command(settings)).replace("$", "$$")
    file = _unit_file(folder.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        UNIT.format(
            name=folder.name,
            command=command,
            directory=settings.directory.replace("%", "%%"),
            environment=unit_words(
                f"{name}={os.environ[name]}" for name in KEPT_VARIABLES if name in os.environ
            ),
        )
    )
    _systemctl("daemon-reload")


def unit_words(words: Iterable[str]) -> str:
    """As systemd reads them: `%` begins a specifier, and a backslash an escape, also in quotes."""
    return shlex.join(words).replace("\\", "\\\\").replace("%", "%%")


def _systemctl(*words: str) -> None:
    environment = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}
    environment["PATH"] = program_path(outside=Path.cwd())
    done = subprocess.run(
        ["systemctl", "--user", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DeployError(f"systemctl --user {' '.join(words)} failed: {done.stderr.strip()}")


def _is_active(name: str) -> bool:
    try:
        _systemctl("is-active", _unit(name))
    except DeployError:
        return False
    return True


if __name__ == "__main__":
    supervise(Folder(sys.argv[1]))
