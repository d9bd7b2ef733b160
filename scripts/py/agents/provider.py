"""What the scripted model provider was asked, from its log: the one place that shows what an agent has sent on."""

import json


class Provider:
    def __init__(self, log):
        self.log = log

    def requests(self, marker):
        """The requests that carry this text, as their JSON text, oldest first."""
        with open(self.log) as f:
            lines = [line for line in f if marker in line]
        return [json.dumps(entry["req"]) for entry in map(json.loads, lines) if "req" in entry]
