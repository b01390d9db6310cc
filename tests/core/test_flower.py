"""What is known of Flower: versions that were tried, and what its commands say. Whether they say it is for the tests
over Flower itself (tests/integration, tests/launch)."""

import json

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from protosphere.core import flower


@pytest.mark.parametrize(
    ("version", "transport"),
    [
        ("1.39.0", "grpc"),
        ("1.39.2", "grpc"),
        ("1.40.0", "http"),
        ("1.42.1.dev3", "http"),
        ("1.38.0", ""),
        ("1.43.0", ""),
    ],
)
def test_a_version_says_what_supernodes_speak_or_was_never_tried(version, transport, monkeypatch):
    monkeypatch.setattr(flower, "version", lambda name: version)
    if transport:
        assert flower.fleet_transport() == transport
    else:
        with pytest.raises(flower.UntriedFlowerError, match=f"^Flower {version} was not tested with this version"):
            flower.fleet_transport()


def test_of_an_answer_that_says_nothing_nothing_is_known():
    for nothing in ("", "no JSON", "[]", "{}", "null", '{"runs": []}', '{"nodes": 3}'):
        assert not flower.has_succeeded(nothing)
        assert flower.run_status(nothing) == ("unknown", "")
        assert flower.submitted_run(nothing) == ""


def test_what_an_answer_says():
    assert flower.submitted_run('{"success": true, "run-id": "12345"}') == "12345"
    assert flower.submitted_run('{"success": false, "run-id": null, "error-message": "no"}') == ""
    assert flower.has_succeeded('{"success": true}')
    runs = [{"status": flower.COMPLETED, "status-details": "N/A"}]
    assert flower.run_status(json.dumps({"runs": runs})) == (flower.COMPLETED, "")
    assert flower.has_finished(flower.COMPLETED)
    assert not flower.has_finished("running")


class SuperLinkClient:
    """What a grid over HTTP calls of a SuperLink that has replies to some messages; `broken` are malformed."""

    def __init__(self, replies, broken):
        self.questions = []
        self.replies, self.broken = replies, broken
        self.objects = {key: item.deflate() for reply in replies for key, item in get_all_nested_objects(reply).items()}

    def PullMessages(self, request):  # noqa: N802
        self.questions.append(list(request.message_ids))
        arrived = [reply for reply in self.replies if reply.metadata.reply_to_message_id in request.message_ids]
        self.replies = [reply for reply in self.replies if reply not in arrived]
        for reply in arrived:
            reply.metadata.__dict__["_message_id"] = reply.object_id
        from flwr.proto.runtime_pb2 import PullAppMessagesResponse

        protos = [message_to_proto(remove_content_from_message(reply)) for reply in arrived]
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=map(get_object_tree, arrived))

    def PullObject(self, request):  # noqa: N802
        content = self.objects[request.object_id]
        content = content[:-3] if request.object_id in self.broken else content
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        """Nothing to do."""


def test_all_replies_are_asked_for_at_once_and_a_malformed_one_costs_no_other():
    if flower.fleet_transport() != "http":
        pytest.skip("the grid of this Flower is gRPC")
    from flwr.supercore.run import Run
    from flwr.superlink.grid import HttpGrid

    flower.take_identity(5, task_id=1)
    replies = []
    for number in range(3):
        question = Message(RecordDict(), 70 + number, MessageType.QUERY)
        question.metadata.__dict__["_message_id"] = f"question-{number}"
        replies.append(Message(RecordDict({"c": ConfigRecord({"number": number})}), reply_to=question))
    client = SuperLinkClient(replies, broken={replies[1].object_id})
    grid = HttpGrid(token="of nobody")
    grid.set_run(Run.create_empty(5))
    grid._client = client
    pending = [f"question-{number}" for number in range(40)]
    found = dict(flower.pulled(grid, pending))
    assert client.questions == [pending]
    assert [found[f"question-{number}"].content["c"]["number"] for number in (0, 2)] == [0, 2]
    assert found["question-1"].startswith("its reply is malformed: Flower cannot read it")
    assert len(found) == 3
    # what has not arrived is asked for with the next look, again at once
    assert list(flower.pulled(grid, pending[3:])) == []
    assert client.questions == [pending, pending[3:]]
    assert grid._client is client
