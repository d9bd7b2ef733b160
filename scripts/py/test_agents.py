"""Real agents through kandev's API: launch, two prompts, cancel, stop, resume. Arguments: the binary, the network."""

import os
import sys
import time
import traceback

from kandev import Server, Unexpected

MODEL = "http://mockllm:8199/v1"


def entry(name, network, args=(), env=None, store=None):
    """A catalogue file: the built-in entry's image, on the network of the model provider."""
    lines = ['id = "%s"' % name, 'name = "%s"' % name, 'image = "kandev/%s:latest"' % name, 'protocol = "acp"',
             'network = "%s"' % network, "args = [%s]" % ", ".join("'%s'" % a for a in args), "[env]"]
    lines += ["%s = '%s'" % pair for pair in (env or {}).items()]
    for source, target in (("{workspace}", "/workspace"), ("{session_store}", store)):
        if target:
            lines += ["[[mounts]]", 'source = "%s"' % source, 'target = "%s"' % target]
    return "\n".join(lines) + "\n"


def catalogue(network):
    codex = {
        "model": '"mock-model"', "model_provider": '"mock"', "approval_policy": '"untrusted"',
        "sandbox_mode": '"danger-full-access"',
        "model_providers.mock": '{name="mock",base_url="%s",env_key="OPENAI_API_KEY",wire_api="responses",'
                                'supports_websockets=false,request_max_retries=0}' % MODEL,
    }
    return {
        "fast-agent": entry("fast-agent", network, ["--model", "passthrough", "--shell"]),
        "kimi-code": entry("kimi-code", network, ["acp"], {
            "KIMI_MODEL_NAME": "mock-model", "KIMI_MODEL_API_KEY": "mock", "KIMI_MODEL_PROVIDER_TYPE": "openai",
            "KIMI_MODEL_BASE_URL": MODEL}, "/root/.kimi-code"),
        "codex-acp": entry("codex-acp", network, [x for k, v in codex.items() for x in ("-c", k + "=" + v)],
                           {"OPENAI_API_KEY": "mock"}, "/root/.codex"),
    }


def expect(condition, what):
    if not condition:
        raise Unexpected(what)


def until(what, seconds, poll):
    deadline = time.monotonic() + seconds
    while True:
        found = poll()
        if found:
            return found
        expect(time.monotonic() < deadline, "not within %d s: %s" % (seconds, what))
        time.sleep(0.1)


def prompt(server, instance, text):
    turn = server.api("POST", "/agents/%s/prompt" % instance, {"message": text, "wait": True})["turn"]
    expect(turn is not None, "no turn in the answer to a prompt that waits")
    expect(turn["stop_reason"] == "end_turn", "stop reason of %r: %s, error %s" % (text, turn["stop_reason"], turn["error"]))
    return turn["text"]


class Agent:
    """One agent's way through all checks; each is one column of the table."""

    def __init__(self, server, name, scripted):
        self.server, self.name, self.scripted = server, name, scripted
        self.workspace = server.workspace(name)

    def launch(self):
        answer = self.server.api("POST", "/agents/launch", {
            "agent_type": self.name, "workspace_path": self.workspace, "permission_policy": "allow", "wait": "ready"})
        self.id, self.session = answer["id"], answer["session_id"]
        expect(answer["status"] == "running" and self.session, "launch: %s" % answer)

    def prompt_1(self):
        text = "MOCK:text:first answer" if self.scripted else "first answer"
        said = prompt(self.server, self.id, text)
        expect("first answer" in said, "said: %r" % said)

    def prompt_2(self):
        if not self.scripted:
            said = prompt(self.server, self.id, "second answer")
            expect("second answer" in said, "said: %r" % said)
            return
        said = prompt(self.server, self.id, "MOCK:shell:printf ok > /workspace/made.txt && echo made-it")
        expect("DONE:" in said, "said: %r" % said)
        with open(os.path.join(self.workspace, "made.txt")) as f:
            expect(f.read() == "ok", "the file has other content")

    def cancel(self):
        if not self.scripted:
            return "-"
        turn = self.server.api("POST", "/agents/%s/prompt" % self.id, {"message": "MOCK:slow:40"})["turn_id"]
        path = "/agents/%s/turns/%s" % (self.id, turn)
        until("the slow turn's first words", 30, lambda: self.server.api("GET", path)["text"])
        begun = time.monotonic()
        self.server.api("POST", "/agents/%s/cancel" % self.id, {"reason": "test"})
        ended = until("the cancelled turn's end", 15, lambda: (t := self.server.api("GET", path))["finished_at"] and t)
        expect(ended["status"] == "cancelled", "the turn is %s" % ended["status"])
        expect(self.server.api("GET", "/agents/%s/status" % self.id)["status"] == "running", "cancel ended the instance")
        return "%.1f s" % (time.monotonic() - begun)

    def stop(self):
        self.server.api("POST", "/agents/%s/stop" % self.id, {"reason": "test"})
        status = self.server.api("GET", "/agents/%s/status" % self.id)["status"]
        expect(status == "stopped", "the instance is %s" % status)
        expect(not self.server.containers(), "its container is still there")

    def resume(self):
        answer = self.server.api("POST", "/agents/%s/resume" % self.id, {"wait": "ready"})
        expect(answer["session_id"] == self.session, "resumed session %s, not %s: %s" % (answer["session_id"], self.session, answer))
        self.id = answer["id"]
        said = prompt(self.server, self.id, ("MOCK:text:" if self.scripted else "") + "back again")
        expect("back again" in said, "said: %r" % said)
        self.stop()


STEPS = ["launch", "prompt_1", "prompt_2", "cancel", "stop", "resume"]


def main():
    binary, network = sys.argv[1:]
    failed = 0
    rows = []
    with Server(binary, "kandev-test-agents-%d" % os.getpid(), catalogue(network)) as server:
        # fast-agent's passthrough model only repeats: it has no slow answer to cancel.
        for agent in (Agent(server, "fast-agent", False), Agent(server, "kimi-code", True),
                      Agent(server, "codex-acp", True)):
            row = [agent.name]
            for step in STEPS:
                try:
                    row.append(getattr(agent, step)() or "ok")
                except Exception as error:  # one agent's failure must not hide the others'
                    if not isinstance(error, (Unexpected, OSError)):
                        traceback.print_exc()
                    print("%s: %s: %s" % (agent.name, step, error))
                    row.append("FAILED")
                    failed += 1
                    break
            rows.append(row + [""] * (len(STEPS) + 1 - len(row)))
        if failed:
            server.print_log()
    for row in [["agent", *STEPS], *rows]:
        print("".join("%-14s" % cell for cell in row).rstrip())
    passed = sum(cell not in ("", "-", "FAILED") for row in rows for cell in row[1:])
    print("\n%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


sys.exit(main())
