"""One agent under test: an instance at a time, in a workspace of its own."""

import json
import os
import subprocess
import urllib.parse

from kandev import Refused

from .checks import expect, until

# How long a turn may take on a slow, loaded machine. Nothing waits for it where all is well.
PATIENCE = 90


class Subject:
    def __init__(self, server, name, provider=None, agent_type=None):
        self.server, self.name, self.provider = server, name, provider
        self.agent_type = agent_type or name
        self.workspace = server.workspace(name)
        self.id = self.session = self.container = None

    # Instances

    def launch(self, **body):
        """A new instance, in the place of the one before."""
        self.give_up()
        answer = self.server.api("POST", "/agents/launch", {
            "agent_type": self.agent_type, "workspace_path": self.workspace, "wait": "ready", **body})
        return self.goes_on_as(answer)

    def goes_on_as(self, answer):
        self.id, self.session, self.container = answer["id"], answer["session_id"], answer["container_id"]
        expect(answer["status"] == "running" and self.session, "not running: %s" % answer)
        return answer

    def ready(self):
        """Makes sure of an instance, for the check after one that failed."""
        if self.id is None:
            self.launch()

    def give_up(self):
        """Whatever state it is in: nothing is left of the instance."""
        if self.id is None:
            return
        instance, self.id = self.id, None
        self.server.api("POST", "/agents/%s/stop" % instance, {"reason": "test", "force": True})

    def stop(self):
        """The ended instance, once its container is gone."""
        instance, self.id = self.id, None
        self.server.api("POST", "/agents/%s/stop" % instance, {"reason": "test"})
        ended = self.server.api("GET", "/agents/%s" % instance)
        expect(ended["status"] == "stopped", "the instance is %s: %s" % (ended["status"], ended["error"]))
        expect(not container_state(self.container), "its container is still there")
        return ended

    def call(self, method, path, body=None):
        return self.server.api(method, "/agents/%s/%s" % (self.id, path), body)

    def status(self):
        return self.call("GET", "status")

    def session_state(self):
        return self.call("GET", "session")

    def rpc(self, method, **params):
        answer = self.call("POST", "rpc", {"method": method, "params": params})
        expect(answer.get("error") is None, "%s: %s" % (method, answer.get("error")))
        return answer["result"]

    def refuses(self, status, code, method, path, body=None):
        """The call is an error of this kind."""
        try:
            answer = self.call(method, path, body)
        except Refused as error:
            expect((error.status, error.code) == (status, code), "not %d %s: %s" % (status, code, error))
            return
        expect(False, "%s %s was done: %s" % (method, path, answer))

    # Turns

    def begin(self, prompt):
        """A turn's id: of a text, or of content blocks."""
        self.ready()
        body = {"message": prompt} if isinstance(prompt, str) else {"prompt": prompt}
        return self.call("POST", "prompt", body)["turn_id"]

    def turn(self, turn):
        return self.call("GET", "turns/%s" % turn)

    def ended(self, turn, status="completed", stop_reason="end_turn", seconds=PATIENCE):
        found = until("the turn's end", seconds, lambda: (t := self.turn(turn))["finished_at"] and t)
        expect(found["status"] == status, "the turn is %s, error %s" % (found["status"], found["error"]))
        expect(found["stop_reason"] == stop_reason, "stop reason %s" % found["stop_reason"])
        return found

    def say(self, prompt):
        """A turn that ends well."""
        return self.ended(self.begin(prompt))

    def says(self, turn, text):
        """Waits for these words in a turn that goes on."""
        return until("the words %r" % text, PATIENCE, lambda: text in self.turn(turn)["text"])

    def cancel(self):
        self.call("POST", "cancel", {"reason": "test"})

    # Events

    def events(self, turn=None, kind=None):
        """All events, or those of a turn or kind."""
        found, after = [], 0
        kinds = "&kind=%s" % kind if kind else ""
        while True:
            page = self.call("GET", "events?limit=5000&after=%d%s" % (after, kinds))["events"]
            if not page:
                break
            after = page[-1]["seq"]
            found += page
        return [e for e in found if turn is None or e["turn_id"] == turn]

    def event(self, turn, kind, **data):
        """The first event of the turn with this data, once there is one."""
        def look():
            for event in self.events(turn, kind):
                if all(event["data"].get(key) == value for key, value in data.items()):
                    return event
            return None
        return until("an event of kind %s with %s" % (kind, data), PATIENCE, look)

    def updates(self, turn, kind):
        """The agent's updates of one kind in a turn."""
        found = [event["data"]["update"] for event in self.events(turn, "update")]
        return [update for update in found if update["sessionUpdate"] == kind]

    def output(self, turn):
        """What the turn's terminals put out."""
        return "".join(e["data"]["text"] for e in self.events(turn, "terminal") if e["data"]["operation"] == "output")

    # Permissions

    def permissions(self, turn, status=None):
        query = "?" + urllib.parse.urlencode({"status": status}) if status else ""
        return [p for p in self.call("GET", "permissions" + query)["permissions"] if p["turn_id"] == turn]

    def asked(self, turn):
        """The turn's permission request that waits."""
        [request] = until("a permission request", PATIENCE, lambda: self.permissions(turn, "pending"))
        expect(self.status()["turn_state"] == "awaiting_permission", "the state does not say that it waits")
        return request

    def answer(self, request, kind):
        """Answers by an option's kind; the answer is what is then on record."""
        answered = self.call("POST", "permissions/%s" % request["id"], {"kind": kind})
        chosen = next(o["optionId"] for o in request["options"] if o["kind"] == kind)
        expect(answered["outcome"] == {"outcome": "selected", "optionId": chosen}, "answered: %s" % answered)
        expect((answered["status"], answered["decided_by"]) == ("selected", "caller"), "answered: %s" % answered)

    def allow(self, turn):
        request = self.asked(turn)
        self.answer(request, "allow_once")
        return request

    def too_late(self, request):
        """Nobody can answer the request any more."""
        self.refuses(409, "conflict", "POST", "permissions/%s" % request["id"], {"kind": "allow_once"})

    # The world outside

    def path(self, name):
        return os.path.join(self.workspace, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)

    def read(self, name):
        """A file of the workspace; None if there is none."""
        try:
            with open(self.path(name)) as f:
                return f.read()
        except FileNotFoundError:
            return None

    def runs(self, command):
        """Whether a process with this in its command line is in the container."""
        done = subprocess.run(["docker", "top", self.container, "-eo", "pid,args"],
                              capture_output=True, text=True, check=True)
        return any(command in line for line in done.stdout.splitlines())


def container_state(container):
    """What the engine says of a container; None once it is gone."""
    done = subprocess.run(["docker", "inspect", container], capture_output=True, text=True)
    if done.returncode != 0:
        expect("no such" in done.stderr.lower(), "docker inspect: %s" % done.stderr)
        return None
    return json.loads(done.stdout)[0]["State"]
