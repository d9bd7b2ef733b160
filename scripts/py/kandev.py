"""A throw-away kandev server and a small client, for the scripts here. Standard library only."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


class Unexpected(Exception):
    """The answer was not the one that the check is about."""


class Refused(Unexpected):
    """An error answer: its status and the body that every error has."""

    def __init__(self, method, path, status, text):
        super().__init__("%s %s: %d %s" % (method, path, status, text))
        self.status = status
        try:
            self.code = json.loads(text).get("error")
        except ValueError:
            self.code = None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`kandev serve` with a data directory, a catalogue and a workspace of its own. Leaves nothing behind."""

    def __init__(self, binary, owner, catalogue=None, env=None):
        self.owner = owner
        self.dir = tempfile.mkdtemp(prefix="kandev-run-")
        # The database may run as another user, who has to get through.
        os.chmod(self.dir, 0o755)
        agents = os.path.join(self.dir, "agents")
        os.mkdir(agents)
        for name, text in (catalogue or {}).items():
            with open(os.path.join(agents, name + ".toml"), "w") as f:
                f.write(text)
        self.base = "http://127.0.0.1:%d" % free_port()
        self.log = os.path.join(self.dir, "log")
        self.command = [binary, "serve"]
        self.environment = dict(
            os.environ,
            KANDEV_LISTEN=self.base.removeprefix("http://"),
            KANDEV_DATA_DIR=os.path.join(self.dir, "data"),
            KANDEV_AGENTS_DIR=agents,
            KANDEV_WORKSPACE_ROOTS=self.dir,
            KANDEV_OWNER=owner,
            **(env or {}),
        )
        self.environment.setdefault("RUST_LOG", "info")
        self.process = self.start()

    def start(self):
        with open(self.log, "a") as log:
            return subprocess.Popen(self.command, env=self.environment, stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=log)

    def wait_ready(self):
        deadline = time.monotonic() + 60
        while True:
            if self.process.poll() is not None:
                raise Unexpected("kandev ended with code %d" % self.process.returncode)
            try:
                self.call("GET", "/ready")
                return
            except (OSError, Unexpected) as error:
                if time.monotonic() > deadline:
                    raise Unexpected("kandev is not ready after 60 s: %s" % error) from error
                time.sleep(0.1)

    def kill_and_restart(self):
        """`kill -9`, and a new process on the same data; ready when this returns."""
        self.process.kill()
        self.process.wait()
        self.process = self.start()
        self.wait_ready()

    def __enter__(self):
        try:
            self.wait_ready()
            return self
        except BaseException:
            self.print_log()
            self.__exit__()
            raise

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        label = "label=kandev.owner=" + self.owner
        for listing, removal in ((["ps", "-aq"], ["rm", "-f"]), (["volume", "ls", "-q"], ["volume", "rm", "-f"])):
            ids = subprocess.run(["docker", *listing, "--filter", label], capture_output=True, text=True).stdout.split()
            if ids:
                subprocess.run(["docker", *removal, *ids], stdout=subprocess.DEVNULL)
        shutil.rmtree(self.dir, ignore_errors=True)

    def containers(self):
        """Ids of this server's containers, ended ones too."""
        done = subprocess.run(["docker", "ps", "-aq", "--filter", "label=kandev.owner=" + self.owner],
                              capture_output=True, text=True, check=True)
        return done.stdout.split()

    def print_log(self, lines=40):
        with open(self.log) as f:
            print("".join(f.readlines()[-lines:]))

    def workspace(self, name):
        path = os.path.join(self.dir, "workspaces", name)
        os.makedirs(path, exist_ok=True)
        return path

    def call(self, method, path, body=None, timeout=120):
        """The answer's JSON; an error answer raises with its body."""
        request = urllib.request.Request(self.base + path, method=method)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, data, timeout) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            raise Refused(method, path, error.code, error.read().decode()) from error

    def api(self, method, path, body=None, timeout=120):
        return self.call(method, "/api/v1" + path, body, timeout)
