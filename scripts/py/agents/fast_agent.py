"""fast-agent with its passthrough model: it repeats what it is told, and calls the tools that it is told to call.

It asks before each call, and uses its client's files and terminals.
"""

import json

from . import common
from .checks import expect


def tool(agent, name, **arguments):
    return agent.begin("***CALL_TOOL %s %s" % (name, json.dumps(arguments)))


def shell(agent, command):
    return tool(agent, "execute", command=command)


def repeats(agent):
    agent.ready()
    for words in ("first answer", "second answer"):
        text = agent.say(words)["text"]
        expect(words in text, "said: %r" % text)


def fs_write(agent):
    """It reads the file first, which is not there."""
    turn = tool(agent, "write_text_file", path="/workspace/made/note.txt", content="line one\nline two\n")
    request = agent.allow(turn)
    expect(request["tool_kind"] == "edit", "the request's kind is %s" % request["tool_kind"])
    agent.ended(turn)
    expect(agent.read("made/note.txt") == "line one\nline two\n", "the file has %r" % agent.read("made/note.txt"))
    read = agent.event(turn, "fs", operation="read", outcome="error")["data"]
    expect(read["error"]["code"] == -32002 and read["error"]["data"]["reason"] == "not_found", "read: %s" % read)
    written = agent.event(turn, "fs", operation="write", outcome="ok")["data"]
    expect(written["bytes"] == 18 and written["created"], "written: %s" % written)


def fs_read_by_lines(agent):
    agent.write("read_me.txt", "line one\nline two\nline three\n")
    turn = tool(agent, "read_text_file", path="/workspace/read_me.txt", line=2, limit=1)
    request = agent.allow(turn)
    expect(request["tool_kind"] == "read", "the request's kind is %s" % request["tool_kind"])
    text = agent.ended(turn)["text"]
    expect("line two" in text and "line one" not in text and "line three" not in text, "it was given %r" % text)
    told = agent.event(turn, "fs", operation="read", outcome="ok")["data"]
    expect((told["line"], told["limit"]) == (2, 1), "the event is %s" % told)


def fs_outside_of_the_roots(agent):
    turn = tool(agent, "read_text_file", path="/etc/passwd")
    agent.allow(turn)
    text = agent.ended(turn)["text"]
    expect("root:" not in text, "it was given %r" % text)
    told = agent.event(turn, "fs", operation="read", outcome="error")["data"]
    expect(told["error"]["data"]["reason"] == "outside_roots", "the event is %s" % told)


def terminal(agent):
    turn = shell(agent, "echo out-$((40+2)); touch made-by-terminal; exit 3")
    request = agent.allow(turn)
    expect(request["tool_kind"] == "execute", "the request's kind is %s" % request["tool_kind"])
    text = agent.ended(turn)["text"]
    expect("out-42" in text and "3" in text.split("out-42")[1], "it was given %r" % text)
    expect(agent.output(turn) == "out-42\n", "the terminal's output is %r" % agent.output(turn))
    exited = agent.event(turn, "terminal", operation="exit")["data"]["exit"]
    expect(exited["exitCode"] == 3, "the exit is %s" % exited)
    expect(agent.read("made-by-terminal") == "", "its working directory is not the workspace")
    done = {(e["data"]["operation"], e["data"].get("outcome")) for e in agent.events(turn, "terminal")}
    expect({("create", "ok"), ("wait", "ok"), ("output_asked", "ok"), ("release", "ok")} <= done, "done: %s" % done)


def permission_rejected(agent):
    turn = shell(agent, "touch /workspace/rejected.txt")
    agent.answer(agent.asked(turn), "reject_once")
    agent.ended(turn)
    expect(agent.read("rejected.txt") is None, "the command was run")
    expect(not agent.events(turn, "terminal"), "a terminal was made")


def policy_by_kind(agent):
    """`read` is allowed by rule, `execute` rejected, and nobody is asked."""
    agent.launch(permission_policy={"read": "allow", "execute": "reject", "default": "ask"})
    agent.write("read_me.txt", "by rule\n")
    turn = tool(agent, "read_text_file", path="/workspace/read_me.txt")
    expect("by rule" in agent.ended(turn)["text"], "it was not allowed to read")
    [read] = agent.permissions(turn)
    turn = shell(agent, "touch /workspace/ruled.txt")
    agent.ended(turn)
    [executed] = agent.permissions(turn)
    expect(agent.read("ruled.txt") is None, "the command was run")
    expect([p["decided_by"] for p in (read, executed)] == ["policy"] * 2, "decided: %s, %s" % (read, executed))
    agent.launch()


def cancel_of_a_request(agent):
    common.cancel_with_a_request_open(agent, shell)
    after_a_cancel(agent)


def after_a_cancel(agent):
    """It answers the first turn with nothing of its own, and the second as always."""
    agent.say("one")
    expect("two" in agent.say("two")["text"], "it does not answer")


def cancel_ends_the_terminal(agent):
    """The agent leaves it behind, so the turn's end releases it."""
    turn = common.running(agent, shell, "sleep 317")
    agent.cancel()
    agent.ended(turn, "cancelled", "cancelled", seconds=10)
    common.is_over(agent, "sleep 317")
    agent.event(turn, "terminal", operation="release", by="turn_end")
    waited = agent.event(turn, "terminal", operation="wait", outcome="ok")["data"]["exit"]
    expect(waited["signal"] == "SIGKILL", "who waited was told %s" % waited)
    expect(agent.status()["status"] == "running", "the cancel ended the instance")
    after_a_cancel(agent)


def kill_9_with_a_request_open(agent):
    turn = tool(agent, "write_text_file", path="/workspace/killed.txt", content="after")
    request = agent.asked(turn)
    agent.server.kill_and_restart()
    again = agent.asked(turn)
    expect(again["id"] == request["id"], "another request: %s" % again)
    agent.answer(again, "allow_once")
    agent.ended(turn)
    expect(agent.read("killed.txt") == "after", "the file has %r" % agent.read("killed.txt"))
    common.same_container(agent)


def kill_9_with_a_terminal(agent):
    turn = common.running(agent, shell, "sleep 6")
    agent.server.kill_and_restart()
    agent.ended(turn)
    exited = agent.event(turn, "terminal", operation="exit")["data"]["exit"]
    expect(exited["exitCode"] == 0, "the exit is %s" % exited)
    common.same_container(agent)


def mode(agent):
    """It has one, `agent`."""
    agent.ready()
    agent.call("PUT", "mode", {"mode_id": "agent"})
    expect(agent.session_state()["current_mode"] == "agent", "the mode is %s" % agent.session_state()["current_mode"])
    agent.refuses(400, "validation_error", "PUT", "mode", {"mode_id": "nosuch"})


def lists(agent):
    agent.say("to be listed")
    expect(common.is_listed(agent, agent.session), "its session is not in its list")


def forks_not(agent):
    agent.ready()
    agent.refuses(501, "unsupported_capability", "POST", "fork", {})


def resumes(agent):
    agent.ready()
    session = agent.session
    agent.say("to be kept")
    ended = agent.stop()
    agent.goes_on_as(agent.server.api("POST", "/agents/%s/resume" % ended["id"], {"wait": "ready"}))
    expect(agent.session == session, "resumed session %s, not %s" % (agent.session, session))
    # It tells its history all the same.
    common.is_resumed_without_replay(agent)
    expect("back again" in agent.say("back again")["text"], "it does not answer")


CHECKS = [
    common.launches, repeats, fs_write, fs_read_by_lines, fs_outside_of_the_roots, terminal, permission_rejected,
    policy_by_kind, cancel_of_a_request, cancel_ends_the_terminal, kill_9_with_a_request_open,
    kill_9_with_a_terminal, mode, lists, forks_not, resumes, common.unknown_method_is_the_agents_error,
    common.stops,
]
