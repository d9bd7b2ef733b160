"""Real agents through kandev's API. Arguments: the binary, the network, the log of the model provider, agents (all)."""

import os
import sys

from agents import codex_acp, fast_agent, kimi_code, sdk_examples
from agents.catalogue import catalogue
from agents.checks import Table
from agents.provider import Provider
from agents.subject import Subject
from kandev import Server

SETTINGS = {"KANDEV_STOP_GRACE_SECONDS": "4", "KANDEV_CANCEL_GRACE_SECONDS": "10"}


def main():
    binary, network, log, *chosen = sys.argv[1:]
    provider = Provider(log)
    agents = {
        "fast-agent": fast_agent.CHECKS,
        "kimi-code": kimi_code.CHECKS,
        "codex-acp": codex_acp.CHECKS,
        "codex-deaf": codex_acp.DEAF,
        "ts-sdk-example": sdk_examples.TYPESCRIPT,
        "py-sdk-example": sdk_examples.PYTHON,
    }
    table = Table()
    with Server(binary, "kandev-test-agents-%d" % os.getpid(), catalogue(network), SETTINGS) as server:
        for name in chosen or agents:
            subject = Subject(server, name, provider)
            table.run(subject, agents[name])
            subject.give_up()
        if table.failed:
            server.print_log()
    table.print()
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
