"""codex-acp: string ids, and requests about tool calls that it has not announced.

It does not end when its stdin does, and as PID 1 not on SIGTERM either. kandev's containers have an init, so that
SIGTERM ends it; `codex-deaf` ignores it all the same.
"""

import time

from . import common
from .checks import expect, until
from .common import shell
from .subject import container_state

GRACE = 4


def answers(agent):
    text = agent.say("MOCK:text:first answer")["text"]
    # It puts a warning about the model before every answer.
    expect(text.endswith("first answer"), "said: %r" % text)


def permission_with_a_string_id_for_an_unannounced_call(agent):
    turn = shell(agent, "echo out-$((40+2)) && printf ok > /workspace/made.txt")
    request = agent.allow(turn)
    call = request["tool_call"]["toolCallId"]
    expect(request["tool_kind"] == "execute", "the request's kind is %s" % request["tool_kind"])
    text = agent.ended(turn)["text"]
    expect(agent.read("made.txt") == "ok", "the file has %r" % agent.read("made.txt"))
    expect("DONE:" in text, "said: %r" % text)

    [asked] = agent.events(turn, "permission_requested")
    [resolved] = agent.events(turn, "permission_resolved")
    expect(isinstance(asked["data"]["request_id"], str), "the id is %r" % asked["data"]["request_id"])
    expect(resolved["data"]["request_id"] == asked["data"]["request_id"], "answered: %s" % resolved["data"])
    about = [e["seq"] for e in agent.events(turn, "update") if e["data"]["update"].get("toolCallId") == call]
    expect(about and min(about) > asked["seq"], "the call was announced before, or never")
    outputs = [u["rawOutput"] for u in agent.updates(turn, "tool_call_update") if "rawOutput" in u]
    expect(any("out-42" in str(output) for output in outputs), "the command's output is %s" % outputs)


def no_permission_to_read(agent):
    agent.write("read_me.txt", "line one\n")
    turn = agent.begin("MOCK:read:/workspace/read_me.txt")
    agent.ended(turn)
    expect(not agent.permissions(turn), "it asked for permission")
    outputs = [u["rawOutput"] for u in agent.updates(turn, "tool_call_update") if "rawOutput" in u]
    expect(any("line one" in str(output) for output in outputs), "the command's output is %s" % outputs)


def permission_rejected(agent):
    """It takes that for the end of its turn."""
    turn = shell(agent, "echo no > /workspace/rejected.txt")
    agent.answer(agent.asked(turn), "reject_once")
    agent.ended(turn, "cancelled", "cancelled")
    expect(agent.read("rejected.txt") is None, "the command was run")
    expect("after it" in agent.say("MOCK:text:after it")["text"], "the next turn has not its own words")


def usage(agent):
    agent.say("MOCK:text:counted")
    used = agent.session_state()["usage"]
    expect(used["used"] == 110, "the usage is %s" % used)


def provider_error_is_the_turns(agent):
    turn = agent.begin("MOCK:error:400")
    error = agent.ended(turn, "failed", None)["error"]
    expect("mock error" in str(error) and "-32603" in str(error), "the error is %s" % error)
    expect("after it" in agent.say("MOCK:text:after it")["text"], "the next turn has not its own words")


def cancel_ends_the_command(agent):
    turn = common.running(agent, shell, "sleep 317")
    agent.cancel()
    agent.ended(turn, "cancelled", "cancelled", seconds=10)
    common.is_over(agent, "sleep 317")
    expect(agent.status()["status"] == "running", "the cancel ended the instance")


def cancel_of_a_request(agent):
    common.cancel_with_a_request_open(agent, shell)


def kill_9_with_a_request_open(agent):
    turn = shell(agent, "printf after > /workspace/killed.txt")
    request = agent.asked(turn)
    agent.server.kill_and_restart()
    again = agent.asked(turn)
    expect(again["id"] == request["id"], "another request: %s" % again)
    agent.answer(again, "allow_once")
    agent.ended(turn)
    expect(agent.read("killed.txt") == "after", "the file has %r" % agent.read("killed.txt"))
    common.same_container(agent)


def current_model(agent):
    options = agent.session_state()["config_options"]
    return next(o["currentValue"] for o in options if o["id"] == "model")


def model_and_its_return(agent):
    """The model is asked for by its name, and again after a resume."""
    agent.launch()
    agent.refuses(400, "validation_error", "PUT", "config_options/model", {"value": "nosuch"})
    agent.call("PUT", "config_options/model", {"value": "gpt-5.2"})
    expect(current_model(agent) == "gpt-5.2", "the model is %s" % current_model(agent))
    agent.say("MOCK:text:asked-of-another")
    request = agent.provider.requests("asked-of-another")[-1]
    expect('"model": "gpt-5.2"' in request, "another model was asked")
    ended = agent.stop()
    agent.goes_on_as(agent.server.api("POST", "/agents/%s/resume" % ended["id"], {"wait": "ready"}))
    expect(current_model(agent) == "gpt-5.2", "after the resume the model is %s" % current_model(agent))
    agent.stop()


def lists_and_has_nothing_to_close(agent):
    """A session of an earlier instance is in its list, but not open in it: that is the agent's own error."""
    agent.launch()
    other = agent.session
    agent.say("MOCK:text:to be listed")
    agent.launch()
    agent.say("MOCK:text:to be listed, too")
    expect(common.is_listed(agent, other) and common.is_listed(agent, agent.session), "not in the agent's list")
    agent.refuses(502, "agent_error", "POST", "sessions/%s/close" % other, {})
    agent.refuses(409, "conflict", "POST", "sessions/%s/close" % agent.session, {})


def forks_not(agent):
    agent.ready()
    agent.refuses(501, "unsupported_capability", "POST", "fork", {})


CHECKS = [
    common.launches, answers, permission_with_a_string_id_for_an_unannounced_call, no_permission_to_read,
    permission_rejected, common.plan_is_kept, common.thoughts_are_not_words, common.image_is_sent_on,
    common.mcp_server_of_the_launch, common.mcp_server_over_http, common.mcp_server_over_sse_is_skipped,
    usage, provider_error_is_the_turns, common.cancel_of_words,
    cancel_ends_the_command, cancel_of_a_request, common.kill_9_in_words, kill_9_with_a_request_open,
    model_and_its_return, lists_and_has_nothing_to_close, common.resumes_with_its_history,
    common.loads_with_its_history, forks_not, common.unknown_method_is_the_agents_error, common.stops,
]


def deaf_ends_by_kill(agent):
    """SIGTERM in vain, and SIGKILL when its grace is over."""
    agent.launch()
    agent.say("MOCK:text:first answer")
    begun = time.monotonic()
    ended = agent.stop()
    took = time.monotonic() - begun
    expect(ended["exit_code"] == 137, "exit code %s" % ended["exit_code"])
    expect(GRACE - 0.5 < took < GRACE + 6, "it took %.1f s" % took)
    return "exit code 137, %.1f s" % took


def deaf_ends_by_kill_in_a_turn(agent):
    """The turn is cancelled first, and what it runs ends with the container."""
    agent.launch()
    turn = common.running(agent, shell, "sleep 317")
    instance = agent.id
    begun = time.monotonic()
    ended = agent.stop()
    took = time.monotonic() - begun
    expect(ended["exit_code"] == 137, "exit code %s" % ended["exit_code"])
    expect(took < 10 + GRACE + 6, "it took %.1f s" % took)
    turn = agent.server.api("GET", "/agents/%s/turns/%s" % (instance, turn))
    expect(turn["status"] == "cancelled", "the turn is %s" % turn["status"])
    return "exit code 137, %.1f s" % took


def deaf_ends_at_once_when_forced(agent):
    agent.launch()
    begun = time.monotonic()
    agent.give_up()
    took = time.monotonic() - begun
    until("the container's removal", 5, lambda: container_state(agent.container) is None)
    expect(took < GRACE, "it took %.1f s" % took)
    return "%.1f s" % took


DEAF = [deaf_ends_by_kill, deaf_ends_by_kill_in_a_turn, deaf_ends_at_once_when_forced]
