"""What is known of Flower: versions that were tried, and what its commands say. Whether they say it is for the tests
over Flower itself (tests/integration, tests/launch)."""

import json

import pytest

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
        with pytest.raises(flower.UntriedFlowerError, match=f"^Flower {version} was not tried with this Protosphere"):
            flower.fleet_transport()


def test_of_an_answer_that_says_nothing_nothing_is_known():
    for nothing in ("", "no JSON", "[]", "{}", "null", '{"runs": []}', '{"nodes": 3}'):
        assert not flower.has_succeeded(nothing)
        assert flower.run_status(nothing) == ("unknown", "")
        assert flower.registered_node(nothing) is None
        assert flower.online_nodes(nothing) == 0


def test_what_an_answer_says():
    assert flower.started_run("INFO: Successfully started run 12345") == "12345"
    assert flower.started_run("INFO: nothing of the kind") == ""
    assert flower.has_succeeded('{"success": true}')
    runs = [{"status": flower.COMPLETED, "status-details": "N/A"}]
    assert flower.run_status(json.dumps({"runs": runs})) == (flower.COMPLETED, "")
    assert flower.has_finished(flower.COMPLETED)
    assert not flower.has_finished("running")
    assert flower.raised_words("Task failed with exception: no data") == "no data"
    assert flower.raised_words("No heartbeat received from the task") == ""
    assert flower.is_silent("No heartbeat received from the task")
    assert flower.registered_node('{"node-id": "17"}') == 17
    nodes = [{"status": "online"}, {"status": "offline"}]
    assert flower.online_nodes(json.dumps({"nodes": nodes})) == 1


def test_the_fleet_paths_are_those_that_flower_serves():
    """By Flower's own routes, where it has them: a path that it adds or drops is seen here."""
    if flower.fleet_transport() != "http":
        pytest.skip("the Fleet API of this Flower is gRPC")
    from flwr.superlink.routers.fleet.router import router

    served = {route.path: route.methods for route in router.routes}
    assert served == {path: {"POST"} for path in (*flower.FLEET_PATHS, *flower.SELF_REGISTRATION)}


def test_the_headers_let_through_are_those_that_a_supernode_sends():
    if flower.fleet_transport() != "http":
        pytest.skip("the Fleet API of this Flower is gRPC")
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore import constant

    names = {"PUBLIC_KEY", "SIGNATURE"}
    own = {getattr(constant, f"FLEET_HTTP_{name}_HEADER") for name in names} | {TIMESTAMP_HEADER}
    versions = ("PACKAGE_NAME", "PACKAGE_VERSION", "COMPONENT_NAME")
    own |= {getattr(constant, f"FLWR_{name}_METADATA_KEY") for name in versions}
    assert set(flower.FLEET_HEADERS) == own | {"content-type", "accept"}
