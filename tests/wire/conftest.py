"""What tests of messages share."""

import pytest

from protosphere.wire.messages import MessageError


@pytest.fixture
def crossed():
    """crossed(records): the records after Flower's own way over the wire, deflated piece by piece and inflated."""

    def cross(item):
        children = {object_id: cross(child) for object_id, child in (item.children or {}).items()}
        return type(item).inflate(item.deflate(), children)

    return cross


@pytest.fixture
def refused():
    """refused(function, *arguments): the reason of the refusal, which is one short printable line."""

    def refuse(function, *arguments):
        with pytest.raises(MessageError) as caught:
            function(*arguments)
        reason = str(caught.value)
        assert reason.isprintable()
        assert 0 < len(reason) <= 1000
        return reason

    return refuse
