"""A machine with a real systemd, in a container: `systemd-nspawn` on an overlay of a prepared root.

Needs root, Debian's `systemd-container` and `mmdebstrap`. The root is made once and never written
to; what a machine changes is in its own layer, which lasts over a reboot of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "systemd-sysv,dbus,dbus-user-session,libpam-systemd,python3-venv,git,ripgrep,ca-certificates,"
    "curl,procps,passwd"
)
CONTROLLERS = ("systemd", "unified", "memory", "pids", "cpu")  # of hybrid cgroups
CGROUPS = Path("/sys/fs/cgroup")
BOOT_SECONDS = 60.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def prepare(base: Path, checkout: Path) -> None:
    """Make the root: Debian, the packages of the service, OpenCode. Minutes, once."""
    if not (base / "ready").exists():
        shutil.rmtree(base, ignore_errors=True)
        expired = 'Acquire::Check-Valid-Until "false"'
        include = f"--include={PACKAGES}"
        _run("mmdebstrap", "--variant=apt", f"--aptopt={expired}", include, "bookworm", base)
        opencode = ROOT / "node_modules/opencode-ai/bin/opencode.exe"
        shutil.copy(opencode, base / "usr/local/bin/opencode")
        (base / "ready").touch()
    files = [checkout / f"requirements/{name}.txt" for name in ("run", "build")]
    pins, known = "".join(file.read_text() for file in files), base / "pins"
    if not known.exists() or known.read_text() != pins:
        download = ("-m", "pip", "download", "-q", "--only-binary", ":all:", "--require-hashes")
        lists = [word for file in files for word in ("-r", file)]
        _run("/usr/bin/python3", *download, *lists, "-d", base / "wheels")
        known.write_text(pins)


class Machine:
    def __init__(self, base: Path, layer: Path, name: str) -> None:
        self._base, self._layer, self._name = base, layer, name
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self.root = layer / "root"

    @classmethod
    @contextmanager
    def open(cls, base: Path) -> Iterator[Machine]:
        with tempfile.TemporaryDirectory(prefix="machine-") as folder:
            layer = Path(folder)
            for name in ("upper", "work", "root"):
                (layer / name).mkdir()
            layers = f"lowerdir={base},upperdir={layer}/upper,workdir={layer}/work"
            _run("mount", "-t", "overlay", "overlay", "-o", layers, layer / "root")
            self = cls(base, layer, layer.name.replace("_", "-").rstrip("-"))
            try:
                yield self
            finally:
                self.stop()
                _run("umount", layer / "root")

    def boot(self) -> None:
        capabilities = ("--capability=CAP_BPF,CAP_NET_ADMIN", "--system-call-filter=bpf")
        nspawn = (
            *("systemd-nspawn", "-q", "-b", "-D", str(self.root), "-M", self._name),
            *("--register=no", "--keep-unit", "--private-network", "--link-journal=no"),
            *("--console=pipe", *capabilities),
        )
        with (self._layer / "console").open("ab") as console:
            self._nspawn = subprocess.Popen(
                ["sh", "-c", self._enter_cgroups() + 'exec "$@"', "sh", *nspawn],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        deadline = time.monotonic() + BOOT_SECONDS
        while not self._is_up():
            assert self._nspawn.poll() is None, (self._layer / "console").read_text()
            assert time.monotonic() < deadline, (self._layer / "console").read_text()
            time.sleep(0.1)
        mounts = "for c in memory pids cpu; do mount -o remount,rw,bind /sys/fs/cgroup/$c; done"
        if self._controllers:
            self.sh(f"{mounts}; systemctl daemon-reexec")

    @property
    def _controllers(self) -> list[Path]:
        return [CGROUPS / each for each in CONTROLLERS if (CGROUPS / each).is_dir()]

    def _enter_cgroups(self) -> str:
        """Without cgroups of their own, units of the same name in two machines would share one."""
        lines = [
            f"mkdir -p {c}/{self._name}; echo $$ >{c}/{self._name}/cgroup.procs"
            for c in self._controllers
        ]
        return "".join(f"{line}; " for line in lines)

    def _is_up(self) -> bool:
        assert self._nspawn is not None
        found = subprocess.run(
            ["pgrep", "-P", str(self._nspawn.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        if not found:
            return False
        self._leader = int(found[0])
        state = self.sh("systemctl is-system-running --wait", check=False).stdout.strip()
        return state in ("running", "degraded")

    def sh(
        self, script: str, *, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A shell command inside."""
        inside = {"PATH": PATH, **(environment or {})}
        words = [f"{name}={value}" for name, value in inside.items()]
        done = subprocess.run(
            [
                "nsenter",
                "-t",
                str(self._leader),
                "-a",
                "env",
                "-i",
                *words,
                "sh",
                "-c",
                script,
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done

    def stop(self) -> None:
        """A clean shutdown."""
        if self._nspawn is None:
            return
        self._nspawn.terminate()
        try:
            self._nspawn.wait(60)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait(10)
        self._nspawn = None
        for controller in self._controllers:
            for folder, _, _ in os.walk(controller / self._name, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()

    def reboot(self) -> None:
        self.stop()
        self.boot()


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)
