"""Flower's processes on this machine: a SuperLink, SuperNodes and runs, all stopped at the end.

Every process has its own process group, so its children are stopped with it. Nothing leaves the
machine: all addresses are 127.0.0.1, telemetry is off, and Flower's home is a given folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
import psutil

from data_prep.base.errors import InputError
from stforecast.flower.standing import read_event_log
from stforecast.flower.superlink import CONNECTION, Keys
from stforecast.flower.supernode import HOST, environment, find_program, free_port, stop_all_of

JOINING = "nodes join at"
"""Words of `stforecast federate serve` when it is ready."""


@dataclass
class LocalFlower:
    """A SuperLink with SuperNodes, as a context manager that stops everything on exit.

    Args:
        folder: folder for logs and Flower's home.
        keys: certificate and key of `stforecast federate serve`; None for a SuperLink without TLS
            and authentication.
        keeps: whether the SuperLink keeps its state in a file, from which it can be started again.
            In memory it serves many nodes sooner.
        unsafe_open: whether strangers may run apps, with keys.
        poll: seconds between two looks for work of each node and of the server. Flower's own is 1;
            many nodes on one machine spend less on a longer one.

    Raises:
        InputError: if Flower is not installed here, or the SuperLink does not start.
    """

    folder: Path
    keys: Keys | None = None
    keeps: bool = True
    poll: float = 0.3
    unsafe_open: bool = False

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []
        self.address = f"{HOST}:{free_port()}"
        self.home = self.folder / "flower"

    def __enter__(self) -> LocalFlower:
        """Start the SuperLink."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.keys:
            table = f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\n'
            connection = f'address = "{self.address}"\ninsecure = true\n'
            (self.home / "config.toml").write_text(table + connection)
        try:
            self.start_superlink()
        except BaseException:
            self.stop_all()
            raise
        return self

    def start_superlink(self) -> None:
        """Start the SuperLink, again if it was stopped: it knows its nodes from its database."""
        host, port = self.address.split(":")
        at: list[object] = ["--host", host, "--port", port]
        if self.keys:
            more = ["--unsafe-open"] if self.unsafe_open else []
            keys = ["--certificate", self.keys.certificate, "--private-key", self.keys.private]
            serve = ["-m", "stforecast", "federate", "serve", "--folder", self.folder]
            self.start("superlink", sys.executable, *serve, *at, *keys, *more)
        else:
            plain = ["--insecure", "--disable-runtime-dependency-installation"]
            database = ["--database", self.home / "superlink.db"] if self.keeps else []
            self.start("superlink", "flower-superlink", *plain, *at, *database)
        self._wait_for_superlink(int(port))

    def __exit__(self, *error: object) -> None:
        """Stop everything, also if Ctrl-C is typed twice."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            self.stop_all()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self, name: str, program: str, *args: object, paths: Sequence[str] = ()) -> None:
        """Start a process that writes to `NAME.log`, with `paths` first on its Python's path."""
        env = self.environment()
        env["PYTHONPATH"] = os.pathsep.join([*paths, env["PYTHONPATH"]])
        log = (self.folder / f"{name}.log").open("ab")
        self._logs.append(log)
        self.running[name] = subprocess.Popen(
            [find_program(program), *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )

    def start_node(
        self,
        name: str,
        data: Path,
        first_client: int,
        *more: object,
        key: Path | None = None,
        paths: Sequence[str] = (),
    ) -> None:
        """Start a node with `stforecast node`, as its owner would."""
        trust = [f"--root-certificates={self.keys.authority}"] if self.keys else ["--insecure"]
        trust += [f"--key={key}"] if key else []
        node = ["-m", "stforecast", "node", f"--superlink={self.address}", f"--data={data}"]
        first = f"--first-client={first_client}"
        self.start(name, sys.executable, *node, first, *trust, *more, paths=paths)

    def kill_supernode(self, name: str) -> None:
        """Kill the SuperNode and all else that `stforecast node` started and starts again."""
        for child in psutil.Process(self.running[name].pid).children():
            child.kill()

    def restart_superlink(self) -> None:
        """Kill the SuperLink and its ServerApp, and start it again."""
        self.stop("superlink", signal.SIGKILL)
        self.start_superlink()

    def register(self, public_key: Path) -> None:
        """Admit a node by its public key."""
        self.flwr("supernode", "register", public_key)

    def run(self, app: Path) -> str:
        """Start a run of an app in a folder and return its number."""
        answer = self.flwr("run", app, "--format", "json")
        return str(json.loads(answer[answer.index("{") :])["run-id"])

    def status(self, run: str) -> str:
        """Return the status of a run, such as `finished:completed`; `unknown` if Flower is busy."""
        answer = self.flwr("list", "--run-id", run, "--format", "json")
        runs = json.loads(answer[answer.index("{") :]).get("runs")
        return str(runs[0]["status"]) if runs else "unknown"

    def flwr(self, *args: object) -> str:
        """Run Flower's command `flwr` and return its output.

        Raises:
            InputError: with its message, if it fails.
        """
        done = subprocess.run(
            [find_program("flwr"), *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(),
            text=True,
            check=False,
        )
        if done.returncode:
            raise InputError(f"flwr {args[0]} failed: {' '.join(done.stdout.split())[-500:]}")
        return done.stdout

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop a process and its children."""
        stop_all_of(self.running.pop(name), how)

    def stop_all(self) -> None:
        """Stop everything, the SuperLink last."""
        for name in sorted(self.running, key=lambda name: name == "superlink"):
            self.stop(name)
        for log in self._logs:
            log.close()
        self._logs.clear()

    def environment(self) -> dict[str, str]:
        """Environment of the processes, which import as this one does."""
        return {
            **environment(),
            "PYTHONPATH": os.pathsep.join(filter(None, map(str, sys.path))),
            "FLWR_HOME": str(self.home),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(self.poll),
            "OMP_NUM_THREADS": "1",
        }

    def _wait_for_superlink(self, port: int) -> None:
        log, end = self.folder / "superlink.log", time.monotonic() + 120
        before = log.read_text(errors="replace").count(JOINING)
        while time.monotonic() < end and self.running["superlink"].poll() is None:
            with socket.socket() as s:
                said = log.read_text(errors="replace").count(JOINING) > before
                if said if self.keys else s.connect_ex((HOST, port)) == 0:
                    return
            time.sleep(0.2)
        tail = log.read_text(errors="replace").split()[-60:]
        raise InputError(f"superlink did not start: {' '.join(tail)}")


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a node's private and public key by `ssh-keygen`, as docs/federation.md does it.

    Raises:
        InputError: if there is no `ssh-keygen`, or it fails.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    private, public = folder / name, folder / f"{name}.pub"
    program = shutil.which("ssh-keygen")
    if program is None:
        raise InputError("ssh-keygen not found; install it (OpenSSH), as it makes the keys")
    words = ["-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", str(private)]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"ssh-keygen failed: {' '.join(done.stderr.split())[-300:]}")
    return private, public


def events_of(out: Path, name: str) -> list[dict[str, Any]]:
    """Return the events of a name, such as `round`, in a server's log; none before it has begun."""
    try:
        return [e for e in read_event_log(out) if e.get("event") == name]
    except InputError:
        return []


def follow(
    flower: LocalFlower,
    run: str,
    out: Path,
    seconds: float = 900.0,
    scenes: Mapping[int, Callable[[], str | None]] | None = None,
) -> dict[str, Any]:
    """Show the server's log until the run is done; `scenes` are played once it reports their round.

    The text of a scene is the run's new number.

    Returns:
        The server's `federation.json`.

    Raises:
        InputError: if the run fails or takes longer.
    """
    done, log, shown, look = out / "federation.json", out / "server.log", 0, 1
    end, waiting = time.monotonic() + seconds, dict(scenes or {})
    while not done.exists():
        time.sleep(0.5)
        shown = _show_new(log, shown)
        reported = {e["round"] for e in events_of(out, "round")} if waiting else set()
        for round in sorted(reported & waiting.keys()):
            run = waiting.pop(round)() or run
        look += 1
        # Asking Flower starts a process each time, so it is done rarely.
        ended = look % 60 == 0 and flower.status(run).startswith("finished")
        if time.monotonic() > end or (ended and not done.exists()):
            raise InputError(f"the run failed or takes too long; see {log} and {flower.folder}")
    _show_new(log, shown)
    about: dict[str, Any] = json.loads(done.read_text())
    return about


def _show_new(log: Path, shown: int) -> int:
    """Echo the whole lines of a log from a position on, in bytes; return the one reached."""
    if log.exists():
        with log.open("rb") as lines:
            lines.seek(shown)
            for line in lines:
                if line.endswith(b"\n"):
                    click.echo(f"  {line.decode().rstrip()}")
                    shown += len(line)
    return shown
