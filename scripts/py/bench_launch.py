"""B4: `POST /agents/launch` until the session is ready, against the same steps made by hand with the engine's API.

Arguments: the binary, the file for the figures. Rounds of the two alternate, so that noise of the machine hits both.
"""

import json
import os
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from kandev import Server, Unexpected

ROUNDS = 20
AT_ONCE = 10
SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
IMAGE = "kandev/mock-agent:latest"


def open_engine():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60)
    connection.connect(SOCKET)
    return connection


def send(connection, method, path, body=None, upgrade=False):
    data = json.dumps(body).encode() if body is not None else b""
    head = "%s /v1.41%s HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (
        method, path, len(data))
    head += "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n" if upgrade else "Connection: close\r\n\r\n"
    connection.sendall(head.encode() + data)


def engine(method, path, body=None):
    """One call on a connection of its own."""
    with open_engine() as connection:
        send(connection, method, path, body)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, text = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status >= 300:
        raise Unexpected("%s %s: %d %s" % (method, path, status, text.decode()))
    if b"chunked" in head.lower():
        text = text.partition(b"\r\n")[2]
    return json.loads(text[:text.rindex(b"}") + 1]) if b"}" in text else None


class Lines:
    """stdout's lines out of the engine's framed stream."""

    def __init__(self, connection):
        self.file = connection.makefile("rb")
        while self.file.readline() not in (b"\r\n", b""):
            pass
        self.rest = b""

    def answer(self, wanted):
        while True:
            while b"\n" in self.rest:
                line, _, self.rest = self.rest.partition(b"\n")
                frame = json.loads(line)
                if frame.get("id") == wanted and "method" not in frame:
                    return frame["result"]
            header = self.file.read(8)
            if len(header) < 8:
                raise Unexpected("the agent ended")
            piece = self.file.read(int.from_bytes(header[4:], "big"))
            if header[0] == 1:
                self.rest += piece


def by_hand(owner, workspace):
    """create, attach, start, initialize, session/new: as kandev does it, without kandev. Seconds."""
    begun = time.perf_counter()
    made = engine("POST", "/containers/create", {
        "Image": IMAGE, "OpenStdin": True, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True,
        "WorkingDir": "/workspace", "Labels": {"kandev.owner": owner}, "HostConfig": {
            "Memory": 256 << 20, "NanoCpus": 10**9, "PidsLimit": 512, "Init": True, "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"], "NetworkMode": "none", "Binds": [
                workspace + ":/workspace",
                "%s-hand-sessions:/sessions" % owner],
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "64m", "max-file": "2"}}}})["Id"]
    try:
        with open_engine() as stdio:
            send(stdio, "POST", "/containers/%s/attach?stream=1&stdin=1&stdout=1&stderr=1" % made, upgrade=True)
            lines = Lines(stdio)
            engine("POST", "/containers/%s/start" % made)
            for number, method, params in (
                    (1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}}),
                    (2, "session/new", {"cwd": "/workspace", "mcpServers": []})):
                frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                stdio.sendall(json.dumps(frame).encode() + b"\n")
                lines.answer(number)
            return time.perf_counter() - begun
    finally:
        engine("DELETE", "/containers/%s?force=1" % made)


def by_kandev(server, workspace):
    begun = time.perf_counter()
    answer = server.api("POST", "/agents/launch", {
        "agent_type": "mock-agent", "workspace_path": workspace, "wait": "ready"})
    taken = time.perf_counter() - begun
    if answer["status"] != "running" or not answer["session_id"]:
        raise Unexpected("launch: %s" % answer)
    server.api("POST", "/agents/%s/stop" % answer["id"], {"force": True})
    return taken


def at_once(work):
    """The slowest of several at once, in seconds."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return max(pool.map(lambda _: work(), range(AT_ONCE)))


def main():
    binary, figures = sys.argv[1:]
    owner = "kandev-bench-%d" % os.getpid()
    with Server(binary, owner, env={"RUST_LOG": "warn"}) as server:
        workspace = server.workspace("bench")
        hand, kandev = (lambda: by_hand(owner, workspace)), (lambda: by_kandev(server, workspace))
        hand(), kandev()  # the first of each pays for caches
        pairs = [(hand(), kandev()) for _ in range(ROUNDS)]
        rows = [("one, median of %d" % ROUNDS, statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs))]
        pairs = [(at_once(hand), at_once(kandev)) for _ in range(3)]
        rows.append(("%d at once, slowest, median of 3" % AT_ONCE, statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)))
    engine("DELETE", "/volumes/%s-hand-sessions" % owner)
    print("B4 launch to session ready (target: at most 1.10)")
    print("%-34s %12s %12s %8s" % ("", "by hand", "kandev", "ratio"))
    for name, baseline, value in rows:
        print("%-34s %9.1f ms %9.1f ms %8.2f" % (name, baseline * 1e3, value * 1e3, value / baseline))
    with open(figures, "w") as f:
        json.dump({"B4": [{"name": n, "baseline_ms": b * 1e3, "kandev_ms": v * 1e3, "ratio": v / b} for n, b, v in rows]}, f, indent=1)
        f.write("\n")


main()
