"""kimi-code: it uses files and terminals of its client, and has nearly all methods of the protocol."""

from . import common
from .checks import expect, until
from .common import shell


def answers(agent):
    expect("first answer" in agent.say("MOCK:text:first answer")["text"], "it says other words")
    expect(agent.session_state()["title"], "the session has no title")


def fs_write(agent):
    """What kind of tool the request is about is told by the call that was announced before it."""
    turn = agent.begin("MOCK:write:/workspace/made/by_kimi.txt")
    request = agent.allow(turn)
    expect("kind" not in request["tool_call"] and request["tool_kind"] == "edit", "the request is %s" % request)
    agent.ended(turn)
    expect(agent.read("made/by_kimi.txt") == "hello from mock\n", "the file has %r" % agent.read("made/by_kimi.txt"))
    told = agent.event(turn, "fs", operation="write", outcome="ok")["data"]
    expect(told["path"] == "/workspace/made/by_kimi.txt" and told["bytes"] == 16 and told["created"],
           "the event is %s" % told)


def fs_read(agent):
    agent.write("read_me.txt", "line one\nline two\n")
    turn = agent.begin("MOCK:read:/workspace/read_me.txt")
    text = agent.ended(turn)["text"]
    expect("line one" in text and "line two" in text, "the model was given %r" % text)
    told = agent.event(turn, "fs", operation="read", outcome="ok", path="/workspace/read_me.txt")["data"]
    expect(told["bytes"] == 18, "the event is %s" % told)
    # It looks for instructions in all directories above, none of which is there or may be read.
    missing = {e["data"]["path"]: e["data"]["error"] for e in agent.events(turn, "fs") if "error" in e["data"]}
    expect(missing.get("/workspace/AGENTS.md", {}).get("data", {}).get("reason") == "not_found", "errors: %s" % missing)
    expect({error["code"] for error in missing.values()} == {-32002}, "errors: %s" % missing)


def terminal(agent):
    turn = shell(agent, "echo out-$((40+2)) && printf ok > /workspace/made.txt")
    request = agent.allow(turn)
    expect(request["tool_kind"] == "execute", "the request's kind is %s" % request["tool_kind"])
    text = agent.ended(turn)["text"]
    expect("out-42" in text, "the model was given %r" % text)
    expect(agent.read("made.txt") == "ok", "the file has %r" % agent.read("made.txt"))
    expect(agent.output(turn) == "out-42\n", "the terminal's output is %r" % agent.output(turn))
    done = {(e["data"]["operation"], e["data"].get("outcome")) for e in agent.events(turn, "terminal")}
    expect({("create", "ok"), ("wait", "ok"), ("output_asked", "ok"), ("release", "ok")} <= done, "done: %s" % done)
    exited = agent.event(turn, "terminal", operation="exit")["data"]["exit"]
    expect(exited["exitCode"] == 0, "the exit is %s" % exited)


def permission_rejected(agent):
    turn = shell(agent, "echo no > /workspace/rejected.txt")
    agent.answer(agent.asked(turn), "reject_once")
    agent.ended(turn)
    expect(agent.read("rejected.txt") is None, "the command was run")
    expect(not agent.events(turn, "terminal"), "a terminal was made")


def permission_always(agent):
    """The agent asks again, for another command, and kandev answers what a caller has answered for the session."""
    agent.launch()
    turn = shell(agent, "echo 1 > /workspace/always.txt")
    agent.answer(agent.asked(turn), "allow_always")
    agent.ended(turn)
    again = shell(agent, "echo 2 > /workspace/always.txt")
    agent.ended(again)
    expect(agent.read("always.txt") == "2\n", "the file has %r" % agent.read("always.txt"))
    [request] = agent.permissions(again)
    expect(request["decided_by"] == "remembered", "decided by %s" % request["decided_by"])
    agent.launch()


def usage_after_the_turn(agent):
    turn = agent.begin("MOCK:text:counted")
    agent.ended(turn)
    [end] = [e["seq"] for e in agent.events(turn, "turn_ended")]
    later = until("usage after the turn's end", 30, lambda: [
        e for e in agent.events(kind="update")
        if e["seq"] > end and e["data"]["update"]["sessionUpdate"] == "usage_update"])
    expect(later[0]["session_id"] == agent.session, "it belongs to %s" % later[0]["session_id"])
    used = agent.session_state()["usage"]
    expect(used["used"] == 110, "the usage is %s" % used)


def provider_error_is_visible(agent):
    """It ends such a turn as if all were well, with nothing said: the end tells that there was nothing."""
    turn = agent.begin("MOCK:error:400")
    ended = agent.ended(turn)
    expect(ended["text"] == "", "said: %r" % ended["text"])
    expect(not agent.updates(turn, "agent_message_chunk"), "it said something")
    end = agent.event(turn, "turn_ended")["data"]
    expect(end["updates"] == 0, "its end tells of %s updates" % end["updates"])


def login_is_a_program(agent):
    """Of the user's, which is not kandev's to run: the agent is not asked for it."""
    agent.ready()
    [method] = agent.session_state()["auth_methods"]
    expect(method["type"] == "terminal", "its way to log in is %s" % method)
    agent.refuses(501, "unsupported_capability", "POST", "authenticate", {"method_id": method["id"]})


def mode(agent):
    """`yolo` asks for nothing, `default` asks again."""
    agent.ready()
    agent.refuses(400, "validation_error", "PUT", "mode", {"mode_id": "nosuch"})
    agent.call("PUT", "mode", {"mode_id": "yolo"})
    expect(agent.session_state()["current_mode"] == "yolo", "the mode is %s" % agent.session_state()["current_mode"])
    turn = shell(agent, "echo yolo > /workspace/yolo.txt")
    agent.ended(turn)
    expect(agent.read("yolo.txt") == "yolo\n", "the file has %r" % agent.read("yolo.txt"))
    expect(not agent.permissions(turn), "it asked for permission")
    agent.call("PUT", "mode", {"mode_id": "default"})
    turn = shell(agent, "echo default > /workspace/yolo.txt")
    agent.answer(agent.asked(turn), "reject_once")
    agent.ended(turn)
    expect(agent.read("yolo.txt") == "yolo\n", "the command was run")


def option(agent, name):
    options = agent.session_state()["config_options"]
    return next(o["currentValue"] for o in options if o["id"] == name)


def config_options(agent):
    agent.ready()
    agent.refuses(400, "validation_error", "PUT", "config_options/thinking", {"value": "perhaps"})
    agent.refuses(404, "not_found", "PUT", "config_options/nosuch", {"value": "on"})
    agent.call("PUT", "config_options/thinking", {"value": "off"})
    expect(option(agent, "thinking") == "off", "thinking is %s" % option(agent, "thinking"))
    agent.call("PUT", "reasoning_effort", {"effort": "on"})
    expect(option(agent, "thinking") == "on", "thinking is %s" % option(agent, "thinking"))
    agent.call("PUT", "model", {"model_id": "__kimi_env_model__"})
    agent.refuses(400, "validation_error", "PUT", "model", {"model_id": "nosuch"})


def cancel_kills_the_terminal(agent):
    turn = common.running(agent, shell, "sleep 317")
    agent.cancel()
    agent.ended(turn, "cancelled", "cancelled", seconds=10)
    common.is_over(agent, "sleep 317")
    agent.event(turn, "terminal", operation="kill", outcome="ok")
    exited = agent.event(turn, "terminal", operation="exit")["data"]["exit"]
    expect(exited["signal"] == "SIGKILL", "the exit is %s" % exited)
    expect(agent.status()["status"] == "running", "the cancel ended the instance")


def cancel_of_a_request(agent):
    common.cancel_with_a_request_open(agent, shell)


def kill_9_with_a_terminal(agent):
    """The command outlives the server, and its end reaches the agent that waits for it."""
    turn = common.running(agent, shell, "sleep 6; echo survived")
    agent.server.kill_and_restart()
    text = agent.ended(turn)["text"]
    expect("survived" in text, "the model was given %r" % text)
    expect(agent.output(turn) == "survived\n", "the terminal's output is %r" % agent.output(turn))
    common.same_container(agent)


def lists(agent):
    agent.ready()
    agent.say("MOCK:text:to be listed")
    expect(common.is_listed(agent, agent.session), "its session is not in its list")


def forks_closes_deletes(agent):
    agent.launch()
    agent.say("MOCK:text:trunk-words")
    session, trunk = agent.session, agent.id
    branch = agent.call("POST", "fork", {})["session_id"]
    expect(branch != session, "the branch is the trunk")
    expect(common.is_listed(agent, branch), "the branch is not in the agent's list")
    agent.call("POST", "sessions/%s/close" % branch, {})
    agent.refuses(409, "conflict", "POST", "sessions/%s/close" % session, {})
    agent.say("MOCK:text:trunk goes on")
    agent.stop()

    agent.goes_on_as(agent.server.api("POST", "/sessions/%s/resume" % branch, {"wait": "ready"}))
    expect(agent.session == branch, "it is session %s, not %s" % (agent.session, branch))
    common.remembers(agent, "trunk-words", "branch-words")
    expect("trunk goes on" not in agent.provider.requests("branch-words")[-1], "the branch goes on with the trunk")
    agent.stop()

    agent.goes_on_as(agent.server.api("POST", "/agents/%s/resume" % trunk, {"wait": "ready"}))
    expect(agent.session == session, "it is session %s, not %s" % (agent.session, session))
    agent.call("DELETE", "sessions/" + branch)
    expect(not common.is_listed(agent, branch), "the branch is still in the agent's list")
    agent.refuses(409, "conflict", "DELETE", "sessions/" + session)


def lost_session(agent):
    agent.give_up()
    answer = agent.server.api("POST", "/agents/launch", {
        "agent_type": agent.name, "workspace_path": agent.workspace, "wait": "ready",
        "session_id": "session_00000000-0000-4000-8000-000000000000"})
    expect(answer["status"] == "failed" and answer["error"]["code"] == "session_lost", "the launch: %s" % answer)


def logout(agent):
    """Of what a login would have left; the model's key is in the environment, and counts on."""
    agent.ready()
    answer = agent.call("POST", "logout", {})
    expect(answer["success"] and answer["session_id"] == agent.session, "answered: %s" % answer)
    expect("still there" in agent.say("MOCK:text:still there")["text"], "it does not answer")


CHECKS = [
    common.launches, answers, fs_write, fs_read, terminal, permission_rejected, permission_always,
    common.plan_is_kept, common.thoughts_are_not_words, common.image_is_sent_on, common.mcp_server_of_the_launch,
    common.mcp_server_over_http, common.mcp_server_over_sse,
    usage_after_the_turn, provider_error_is_visible, mode, config_options, common.cancel_of_words,
    cancel_kills_the_terminal, cancel_of_a_request, common.kill_9_in_words, kill_9_with_a_terminal, lists,
    forks_closes_deletes, common.resumes_with_its_history, common.loads_with_its_history, lost_session, login_is_a_program,
    logout,
    common.unknown_method_is_the_agents_error, common.stops,
]
