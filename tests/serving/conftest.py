"""Short runs of which tests take a trained client: each is done once a session, and copied for whoever asks again."""

import json
import shutil

import pytest

KEPT = ("results", "clients")


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """What the runs of this session left, by their settings."""
    return tmp_path_factory.mktemp("runs"), {}


@pytest.fixture
def trained_run(run, home, done):
    """trained_run(settings, clients=2) -> the run's folder and that of its clients' stores, for this test alone."""
    place, names = done

    def start(settings=None, clients=2):
        settings = {"alpha": 0.5} | (settings or {})
        key = json.dumps([settings, clients], sort_keys=True)
        if key not in names:
            # two homes may give two runs of one second the same name
            names[key] = place / str(len(names)), run(settings, clients=clients).name
            kept, name = names[key]
            for part in KEPT:
                shutil.copytree(home / part / name, kept / part / name)
        kept, name = names[key]
        for part in KEPT:
            shutil.copytree(kept / part / name, home / part / name, dirs_exist_ok=True)
        return tuple(home / part / name for part in KEPT)

    return start
