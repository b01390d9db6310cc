"""Short runs for tests that need a trained client: each run is done once per session and copied for each test."""

import json
import shutil

import pytest

FOLDERS = ("results", "clients")


@pytest.fixture(scope="session")
def stored_runs(tmp_path_factory):
    """The place of this session's runs, and settings -> its folder there and the run's name."""
    return tmp_path_factory.mktemp("runs"), {}


@pytest.fixture
def trained_run(run, home, stored_runs):
    """trained_run(settings, clients=2) -> copies of the run's folder and of its clients' stores, for this test."""
    place, names = stored_runs

    def start(settings=None, clients=2):
        settings = {"alpha": 0.5} | (settings or {})
        key = json.dumps([settings, clients], sort_keys=True)
        if key not in names:
            # runs of two homes may have equal names
            names[key] = place / str(len(names)), run(settings, clients=clients).name
            for part in FOLDERS:
                shutil.copytree(home / part / names[key][1], names[key][0] / part / names[key][1])
        original, name = names[key]
        for part in FOLDERS:
            shutil.copytree(original / part / name, home / part / name, dirs_exist_ok=True)
        return tuple(home / part / name for part in FOLDERS)

    return start
