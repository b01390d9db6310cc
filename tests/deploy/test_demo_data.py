"""The demos' sites: disjoint, together all of the digits, readable as any site's own folder."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from deploy.demo import write_sites
from protosphere.data.client_data import client_data
from protosphere.data.partition.assignment import DataSpec


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("sites"))


def rows_of(site, cache):
    spec = DataSpec("anything", clients=3, test_share=0.25, validation_share=0.0)
    data = client_data(spec, 0, cache, data_path=str(site))
    inputs = np.concatenate([part.inputs.numpy() for part in (data.train, data.test)])
    labels = np.concatenate([part.labels.numpy() for part in (data.train, data.test)])
    return data.class_names, inputs.reshape(len(inputs), -1), labels


def test_the_sites_share_all_digits_among_them(sites, tmp_path):
    names, inputs, labels = zip(*(rows_of(site, tmp_path) for site in sites), strict=True)
    assert set(names) == {tuple("0123456789")}
    digits = load_digits()
    whole = np.column_stack([digits.target, np.round(digits.data * (255 / 16))]).astype(int)
    found = np.concatenate([np.column_stack(pair) for pair in zip(labels, inputs, strict=True)])
    assert sorted(map(tuple, found)) == sorted(map(tuple, whole))


def test_the_sites_differ_in_their_classes_and_are_the_same_each_time(sites, tmp_path):
    counts = np.array([np.bincount(rows_of(site, tmp_path)[2], minlength=10) for site in sites])
    assert counts.min(axis=1).max() < 20 < counts.sum(axis=1).min()
    again = write_sites(tmp_path / "again")
    files = [sorted(p.relative_to(root).as_posix() for p in root.rglob("*.png")) for root in sites]
    assert files == [sorted(p.relative_to(root).as_posix() for p in root.rglob("*.png")) for root in again]
    other = write_sites(tmp_path / "other", seed=1)
    assert files[0] != sorted(p.relative_to(other[0]).as_posix() for p in other[0].rglob("*.png"))
