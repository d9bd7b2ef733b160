"""An MCP server over HTTP (/mcp) and over SSE (/sse), for those who bring the header: one tool, named after the way."""

import json
import queue
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HEADER = ("X-Probe", "let me in")
TOOLS = {"/mcp": "probe_over_http", "/sse": "probe_over_sse"}
# Of those who listen at /sse, by the name that is in the address that they are to post to.
STREAMS = {}


def answer(message, tool):
    """A request's answer; None for a notification."""
    if "id" not in message:
        return None
    params = message.get("params") or {}
    results = {
        "initialize": {"protocolVersion": params.get("protocolVersion"), "capabilities": {"tools": {}},
                       "serverInfo": {"name": "probe", "version": "1"}},
        "tools/list": {"tools": [{"name": tool, "description": "a probe", "inputSchema": {"type": "object"}}]},
    }
    return {"jsonrpc": "2.0", "id": message["id"], "result": results.get(message["method"], {})}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, status, body=b"", kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def let_in(self):
        if self.headers[HEADER[0]] == HEADER[1]:
            return True
        self.reply(403)
        return False

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.let_in():
            return
        path, _, stream = self.path.partition("?")
        if path not in TOOLS or (path == "/sse" and stream not in STREAMS):
            self.reply(404)
            return
        found = answer(json.loads(body), TOOLS[path])
        if path == "/sse" and found:
            STREAMS[stream].put(found)
        if path == "/sse" or found is None:
            self.reply(202)
        else:
            self.reply(200, json.dumps(found).encode())

    def do_GET(self):
        if not self.let_in():
            return
        if self.path != "/sse":
            self.reply(405)
            return
        name, messages = uuid.uuid4().hex, queue.Queue(maxsize=100)
        STREAMS[name] = messages
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.event("endpoint", "/sse?" + name)
        while True:
            self.event("message", json.dumps(messages.get()))

    def do_DELETE(self):
        self.reply(200)

    def event(self, kind, data):
        self.wfile.write(("event: %s\ndata: %s\n\n" % (kind, data)).encode())
        self.wfile.flush()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
