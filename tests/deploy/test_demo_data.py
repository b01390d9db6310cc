"""The demos' sites: disjoint, together all of the digits, readable as any site's own folder."""

import numpy as np
from sklearn.datasets import load_digits

from deploy.demo import write_sites
from protosphere.data.client_data import client_data
from protosphere.data.partition.assignment import DataSpec


def test_the_sites_share_all_digits_among_them_in_different_classes(tmp_path):
    rows, counts = [], []
    spec = DataSpec("anything", clients=3, test_share=0.25, validation_share=0.0)
    for site in write_sites(tmp_path / "sites"):
        data = client_data(spec, 0, tmp_path, data_path=str(site))
        assert data.class_names == tuple("0123456789")
        for part in (data.train, data.test):
            rows.append(np.column_stack([part.labels.numpy(), part.inputs.numpy().reshape(len(part.inputs), -1)]))
        counts.append(np.bincount(np.concatenate([rows[-2], rows[-1]])[:, 0].astype(int), minlength=10))
    digits = load_digits()
    whole = np.column_stack([digits.target, np.round(digits.data * (255 / 16))]).astype(int)
    assert sorted(map(tuple, np.concatenate(rows))) == sorted(map(tuple, whole))
    assert np.min(counts, axis=1).max() < 20 < np.sum(counts, axis=1).min()
