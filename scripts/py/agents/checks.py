"""Checks: functions that take a subject and raise `Unexpected`; what they return is shown beside their name."""

import time
import traceback

from kandev import Unexpected


def expect(condition, what):
    if not condition:
        raise Unexpected(what)


def until(what, seconds, poll):
    """The first true value of `poll`, which is asked until the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        found = poll()
        if found:
            return found
        expect(time.monotonic() < deadline, "not within %d s: %s" % (seconds, what))
        time.sleep(0.1)


class Table:
    """Runs checks, and remembers what came of each."""

    def __init__(self):
        self.rows = []

    def run(self, subject, checks):
        for check in checks:
            begun = time.monotonic()
            name = check.__name__.replace("_", " ")
            try:
                outcome, failed = check(subject) or "ok", False
            except Exception as error:  # one failure must not hide the others
                if not isinstance(error, (Unexpected, OSError)):
                    traceback.print_exc()
                print("%s: %s: %s" % (subject.name, name, error), flush=True)
                outcome, failed = "FAILED", True
                subject.give_up()
            self.rows.append((subject.name, name, outcome, time.monotonic() - begun, failed))

    @property
    def failed(self):
        return sum(row[-1] for row in self.rows)

    def print(self):
        rows = [("agent", "check", "outcome", "time")]
        rows += [(agent, name, outcome, "%.1f s" % took) for agent, name, outcome, took, _ in self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        print("\n%d passed, %d failed" % (len(self.rows) - self.failed, self.failed))
