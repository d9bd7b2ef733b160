"""What several agents are asked alike. An agent differs in how it is told to run a command."""

import time

from kandev import Unexpected

from . import mcp_probe
from .checks import expect, until


def launches(agent):
    agent.launch()
    info = agent.session_state()["agent_info"]
    return "%s %s" % (info["name"], info["version"]) if info else "ok"


def stops(agent):
    """On SIGTERM, before the grace is over."""
    agent.ready()
    begun = time.monotonic()
    code = agent.stop()["exit_code"]
    expect(code != 137, "it had to be killed")
    return "exit code %s, %.1f s" % (code, time.monotonic() - begun)


def text_of(update):
    return update["content"]["text"]


def shell(agent, command):
    """A turn in which a scripted model calls its tool for commands."""
    return agent.begin("MOCK:shell:" + command)


def running(agent, begin, command):
    """A turn, allowed, whose command runs in the container."""
    turn = begin(agent, command)
    agent.allow(turn)
    until("%r running" % command, 60, lambda: agent.runs(command))
    return turn


def is_over(agent, command):
    until("the end of %r" % command, 15, lambda: not agent.runs(command))


def cancel_with_a_request_open(agent, begin, stop_reason="cancelled"):
    """The request is answered, the turn ends, nothing was done, and the next turn is like any other."""
    turn = begin(agent, "echo no > /workspace/cancelled.txt")
    request = agent.asked(turn)
    agent.cancel()
    agent.ended(turn, "cancelled", stop_reason)
    [kept] = agent.permissions(turn)
    expect((kept["status"], kept["decided_by"]) == ("cancelled", "cancel"), "the request is %s" % kept)
    agent.too_late(request)
    expect(agent.read("cancelled.txt") is None, "the command was run")
    expect(agent.status()["status"] == "running", "the cancel ended the instance")


def cancel_of_words(agent):
    """Of an answer that goes on; seconds from the cancel to the turn's end."""
    turn = agent.begin("MOCK:slow:80")
    agent.says(turn, "word2")
    begun = time.monotonic()
    agent.cancel()
    text = agent.ended(turn, "cancelled", "cancelled", seconds=10)["text"]
    took = time.monotonic() - begun
    expect("word80" not in text, "the turn was not cut short")
    expect(agent.status()["status"] == "running", "the cancel ended the instance")
    expect("after it" in agent.say("MOCK:text:after it")["text"], "the next turn has not its own words")
    return "%.1f s" % took


def kill_9_in_words(agent):
    """The turn goes on in the same container, and nothing of it is lost or twice."""
    turn = agent.begin("MOCK:slow:24")
    agent.says(turn, "word2")
    agent.server.kill_and_restart()
    text = agent.ended(turn)["text"]
    words = " ".join("word%d" % n for n in range(1, 25))
    expect(text.strip().endswith(words), "the turn's text is %r" % text)
    same_container(agent)


def same_container(agent):
    here = agent.server.api("GET", "/agents/%s" % agent.id)["container_id"]
    expect(here == agent.container, "it is not the same container")


def is_listed(agent, session):
    sessions = agent.call("GET", "sessions?cwd=/workspace")["sessions"]
    return session in [s["session_id"] for s in sessions]


def remembers(agent, token, question):
    """The model is told what was said before, when it is asked this."""
    expect(question in agent.say("MOCK:text:" + question)["text"], "the model did not answer")
    requests = agent.provider.requests(question)
    expect(requests, "the provider was not asked")
    if token not in requests[-1]:
        raise Unexpected("the model was asked without what was said before")


def resumes_with_its_history(agent):
    agent.ready()
    session = agent.session
    agent.say("MOCK:text:kept-%s" % agent.name)
    ended = agent.stop()
    agent.goes_on_as(agent.server.api("POST", "/agents/%s/resume" % ended["id"], {"wait": "ready"}))
    expect(agent.session == session, "resumed session %s, not %s" % (agent.session, session))
    is_resumed_without_replay(agent)
    remembers(agent, "kept-%s" % agent.name, "resumed-%s" % agent.name)


def is_resumed_without_replay(agent):
    """By `session/resume`: what is known already is not on record again."""
    [event] = agent.events(kind="session")
    expect(event["data"]["how"] == "resumed", "the session is %s" % event["data"])
    said = {event["data"]["update"]["sessionUpdate"] for event in agent.events(kind="update")}
    expect(not said & {"user_message_chunk", "agent_message_chunk"}, "on record again: %s" % said)


def loads_with_its_history(agent):
    """By `session/load`, of a session that kandev knows nothing of: what the agent replays is its history."""
    agent.launch()
    session = agent.session
    agent.say("MOCK:text:replayed-%s" % agent.name)
    task = agent.stop()["task_id"]
    agent.server.api("DELETE", "/tasks/%s" % task)
    agent.launch(session_id=session)
    expect(agent.session == session, "it is session %s, not %s" % (agent.session, session))
    told = [event["data"]["update"] for event in agent.events(kind="update")]
    said = [text_of(u) for u in told if u["sessionUpdate"] == "user_message_chunk"]
    expect(any("replayed-" in text for text in said), "replayed: %s" % said)
    remembers(agent, "replayed-%s" % agent.name, "loaded-%s" % agent.name)
    return "%d updates" % len(told)


def image_is_sent_on(agent):
    agent.ready()
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    agent.say([{"type": "text", "text": "MOCK:text:picture-%s" % agent.name},
               {"type": "image", "mimeType": "image/png", "data": picture}])
    request = agent.provider.requests("picture-%s" % agent.name)[-1]
    expect("data:image/" in request, "the model was not shown the picture")


MCP_SERVER = """
const answers = {
  initialize: p => ({
    protocolVersion: p.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: "probe", version: "1"},
  }),
  "tools/list": () => ({tools: [{name: "probe_tool", description: "a probe", inputSchema: {type: "object"}}]}),
};
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const {id, method, params} = JSON.parse(line);
  if (id === undefined) return;
  const result = (answers[method] || (() => ({})))(params);
  console.log(JSON.stringify({jsonrpc: "2.0", id, result}));
});
"""


def mcp_server_of_the_launch(agent):
    """Its tool is offered to the model, also after a resume."""
    agent.write("mcp_server.js", MCP_SERVER)
    server = {"name": "probe", "command": "/usr/local/bin/node", "args": ["/workspace/mcp_server.js"], "env": []}
    agent.launch(mcp_servers=[server])
    offers(agent, "probe_tool")


def mcp_server_over(agent, kind, path):
    """One that is elsewhere on the network and lets in who brings the header."""
    header = dict(zip(("name", "value"), mcp_probe.HEADER))
    agent.launch(mcp_servers=[{"type": kind, "name": "far", "url": "http://mcpprobe:8200" + path, "headers": [header]}])
    told = agent.session_state()["mcp_servers"]
    expect([(s["name"], s["status"]) for s in told] == [("far", "handed")], "told of it: %s" % told)
    offers(agent, mcp_probe.TOOLS[path])


def mcp_server_over_http(agent):
    mcp_server_over(agent, "http", "/mcp")


def mcp_server_over_sse(agent):
    mcp_server_over(agent, "sse", "/sse")


def mcp_server_over_sse_is_skipped(agent):
    """An agent that does not take such servers is not given it, and the caller is told."""
    agent.launch(mcp_servers=[{"type": "sse", "name": "far", "url": "http://mcpprobe:8200/sse", "headers": []}])
    told = agent.session_state()["mcp_servers"]
    expect([(s["name"], s["status"]) for s in told] == [("far", "skipped")], "told of it: %s" % told)


def offers(agent, tool):
    """The model is offered the tool, also after a resume."""
    for attempt in ("launched", "resumed"):
        words = "%s-%s-%s" % (tool, attempt, agent.name)
        agent.say("MOCK:text:" + words)
        expect(tool in agent.provider.requests(words)[-1].replace(words, ""),
               "%s: the model is not offered the tool" % attempt)
        ended = agent.stop()
        if attempt == "launched":
            agent.goes_on_as(agent.server.api("POST", "/agents/%s/resume" % ended["id"], {"wait": "ready"}))


def plan_is_kept(agent):
    turn = agent.begin("MOCK:plan")
    agent.ended(turn)
    plan = [(entry["content"], entry["status"]) for entry in agent.session_state()["plan"]]
    expect(plan == [("Look at the folder", "completed"), ("Write the file", "in_progress"), ("Report", "pending")],
           "the plan is %s" % plan)
    expect(agent.updates(turn, "plan"), "no update tells of it")


def thoughts_are_not_words(agent):
    turn = agent.begin("MOCK:think")
    text = agent.ended(turn)["text"]
    thoughts = "".join(text_of(u) for u in agent.updates(turn, "agent_thought_chunk"))
    expect("Let me think" in thoughts, "thoughts: %r" % thoughts)
    expect("Thought about it." in text and "Let me think" not in text, "said: %r" % text)


def unknown_method_is_the_agents_error(agent):
    agent.ready()
    answer = agent.call("POST", "rpc", {"method": "nosuch/method", "params": {}})
    expect(answer["error"]["code"] == -32601, "answered: %s" % answer)
