"""The example agents of the official SDKs: scripted, without a model."""

from . import common
from .checks import expect

ALLOWED, SKIPPED = "I've successfully updated the configuration", "I'll skip the configuration update"


# TypeScript: a permission request in every turn, each about the tool call `call_2`.


def permission_asked_and_answered_in_every_turn(agent):
    seen = set()
    for kind, words in (("allow_once", ALLOWED), ("reject_once", SKIPPED), ("allow_once", ALLOWED)):
        turn = agent.begin("go on")
        request = agent.asked(turn)
        expect(request["tool_call"]["toolCallId"] == "call_2", "it is about %s" % request["tool_call"])
        expect(request["tool_kind"] == "edit", "its kind is %s" % request["tool_kind"])
        agent.answer(request, kind)
        text = agent.ended(turn)["text"]
        expect(words in text, "after %s the agent said %r" % (kind, text))
        seen.add(request["id"])
        agent.too_late(request)
    expect(len(seen) == 3, "requests are taken for one another: %s" % seen)


def cancel_answers_what_is_asked(agent):
    turn = agent.begin("go on")
    request = agent.asked(turn)
    agent.cancel()
    # The agent itself calls that a good end.
    ended = agent.ended(turn, "cancelled", "end_turn")
    expect(ALLOWED not in ended["text"] and SKIPPED not in ended["text"], "said: %r" % ended["text"])
    [kept] = agent.permissions(turn)
    expect((kept["status"], kept["decided_by"]) == ("cancelled", "cancel"), "the request is %s" % kept)
    agent.too_late(request)
    expect(agent.status()["status"] == "running", "the cancel ended the instance")


def kill_9_with_a_request_open(agent):
    turn = agent.begin("go on")
    request = agent.asked(turn)
    agent.server.kill_and_restart()
    again = agent.asked(turn)
    expect(again["id"] == request["id"], "another request: %s" % again)
    agent.answer(again, "allow_once")
    expect(ALLOWED in agent.ended(turn)["text"], "the agent did not hear the answer")
    # The engine's log had all of it again.
    expect(len(agent.permissions(turn)) == 1, "the request came twice")


def policy_answers_in_place_of_a_caller(agent):
    for policy, words in (("allow", ALLOWED), ("reject", SKIPPED)):
        agent.launch(permission_policy=policy)
        turn = agent.say("go on")
        expect(words in turn["text"], "with %s the agent said %r" % (policy, turn["text"]))
        [request] = agent.permissions(turn["id"])
        expect(request["decided_by"] == "policy", "decided by %s" % request["decided_by"])


def has_no_other_methods(agent):
    agent.ready()
    agent.refuses(501, "unsupported_capability", "POST", "fork", {})
    agent.refuses(501, "unsupported_capability", "PUT", "mode", {"mode_id": "x"})
    agent.refuses(501, "unsupported_capability", "PUT", "model", {"model_id": "x"})


TYPESCRIPT = [common.launches, permission_asked_and_answered_in_every_turn, cancel_answers_what_is_asked,
              kill_9_with_a_request_open, policy_answers_in_place_of_a_caller, has_no_other_methods, common.stops]


# Python: an echo, whose session ids are counted from "0".


def session_is_named_0(agent):
    agent.ready()
    expect(agent.session == "0", "it is %r" % agent.session)


def echoes_turn_by_turn(agent):
    for words in ("one", "two"):
        turn = agent.say(words)
        expect(words in turn["text"], "said: %r" % turn["text"])
        expect(not agent.permissions(turn["id"]), "it asked for permission")


def kill_9_between_turns(agent):
    agent.ready()
    agent.server.kill_and_restart()
    turn = agent.say("three")
    expect("three" in turn["text"], "said: %r" % turn["text"])
    common.same_container(agent)


PYTHON = [common.launches, session_is_named_0, echoes_turn_by_turn, common.unknown_method_is_the_agents_error,
          kill_9_between_turns, has_no_other_methods, common.stops]
