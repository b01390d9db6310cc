"""Tables of numbers and categories: their features, what is missing, and what a client makes of them."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from protosphere.core.errors import DataError, ModelError
from protosphere.data.client_data import InputTransform, client_data
from protosphere.data.decode import Recipe, decode
from protosphere.data.forms.columns import Columns
from protosphere.data.forms.table_schema import Column, TableSchema
from protosphere.data.partition.assignment import DataSpec
from protosphere.models import build
from tests.data.draws import decoded

N = 40
RNG = np.random.default_rng(7)
FRAME = pd.DataFrame(
    {
        "age": np.where(np.arange(N) % 10 == 3, np.nan, 20.0 + np.arange(N)),
        "weight": RNG.normal(70, 9, N),
        "job": [("nurse", None, "cook", "smith")[i % 4] for i in range(N)],
        "sex": [("f", "m")[i % 2] for i in range(N)],
        "label": np.arange(N) % 3,
    }
)
SCHEMA = (
    Column("age", "number", missing=True),
    Column("weight", "number"),
    Column("job", "category", ("cook", "nurse", "smith"), True),
    Column("sex", "category", ("f", "m")),
)


@pytest.fixture
def table(tmp_path):
    """table(frame, suffix, test) -> the folder of a table as a file of that kind."""

    def make(frame=FRAME, suffix="csv", test=None, name="set"):
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        for split, rows in (("train", frame), ("test", test)):
            if rows is not None:
                path = root / f"{split}.{suffix}"
                if suffix == "jsonl":
                    rows.to_json(path, orient="records", lines=True)
                else:
                    rows.to_csv(path, index=False) if suffix == "csv" else rows.to_parquet(path, index=False)
        return root

    return make


def expected(frame):
    """The features of FRAME's columns by pandas."""
    jobs = pd.get_dummies(frame["job"], dummy_na=True).to_numpy(np.float32)
    parts = [frame["age"], frame["age"].isna(), frame["weight"], *jobs.T, frame["sex"] == "f", frame["sex"] == "m"]
    return np.stack([np.asarray(part, np.float32) for part in parts], axis=1)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_columns_become_features_and_missing_values_what_they_are(table, tmp_path, suffix):
    found = decoded(str(table(suffix=suffix)), tmp_path / "cache")
    assert found.columns == SCHEMA
    assert np.array_equal(np.array(found.inputs), expected(FRAME), equal_nan=True)
    assert (found.labels.tolist(), found.scale) == (FRAME["label"].tolist(), 1.0)
    assert TableSchema(SCHEMA).numeric.tolist() == [True, False, True, *[False] * 6]
    assert TableSchema(SCHEMA).count_missing(found.inputs) == {"age": 4, "job": 10}
    # one file by its path is the same
    assert decoded(str(table(suffix=suffix) / f"train.{suffix}"), tmp_path / "cache").columns == SCHEMA


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_column_is_what_all_splits_make_of_it(table, tmp_path, suffix):
    train = pd.DataFrame({"a": [1, 2, 3], "b": [True, False, True], "label": ["x", "y", "x"]})
    found = decoded(str(table(train, suffix, train.assign(a=[0.5, 1.5, np.nan]))), tmp_path / "cache")
    assert found.columns == (Column("a", "number", missing=True), Column("b", "number"))
    expected = [[1, 0, 1], [2, 0, 0], [3, 0, 1], [0.5, 0, 1], [1.5, 0, 0], [np.nan, 1, 1]]
    assert np.array_equal(np.array(found.inputs), np.array(expected, np.float32), equal_nan=True)
    assert (found.class_names, found.train_rows) == (("x", "y"), 3)


@pytest.mark.parametrize("split", ["train2", "test"])
def test_a_json_column_may_be_missing_in_a_whole_file(table, tmp_path, split):
    train = pd.DataFrame({"a": [1, 2], "b": ["u", "v"], "label": ["x", "y"]})
    root = table(train, "jsonl")
    (root / f"{split}.jsonl").write_text('{"a": null, "b": null, "label": "x"}\n')
    found = decoded(str(root), tmp_path / "cache")
    assert found.columns == (Column("a", "number", missing=True), Column("b", "category", ("u", "v"), True))
    assert np.isnan(found.inputs[2, 0])
    assert found.inputs[2, 1:].tolist() == [1, 0, 0, 1]


def test_strings_of_parquet_may_be_categories_or_views(tmp_path):
    words = pa.array(["u", "v", "u", None])
    columns = {
        "a": words.cast(pa.string_view()),
        "b": words.dictionary_encode(),
        "label": pa.array(["x", "y", "x", "y"]),
    }
    plain = pa.table({"a": words, "b": words, "label": columns["label"]})
    odd = pa.table(columns | {"label": columns["label"].dictionary_encode()})
    found = []
    for name, content in (("plain", plain), ("odd", odd)):
        (tmp_path / name).mkdir()
        pq.write_table(content, tmp_path / name / "train.parquet")
        data = decoded(str(tmp_path / name), tmp_path / "cache")
        found.append((data.columns, data.inputs.tolist(), data.labels.tolist(), data.class_names))
    assert found[0] == found[1]


def test_a_client_scales_numbers_by_its_own_training_rows_alone(table, tmp_path):
    spec = DataSpec(str(table()), 2, "iid", min_samples=1)
    whole = decoded(spec.dataset, tmp_path / "cache")
    for partition in (0, 1):
        data = client_data(spec, partition, tmp_path / "cache")
        rows = data.train.inputs.numpy().astype(np.float64)
        mean, std = np.nanmean(rows[:, [0, 2]], axis=0), np.nanstd(rows[:, [0, 2]], axis=0)
        assert np.allclose([data.transform.mean[i] for i in (0, 2)], mean, rtol=1e-12)
        assert np.allclose([data.transform.std[i] for i in (0, 2)], std, rtol=1e-12)
        assert {data.transform.mean[i] for i in (1, 3, 4, 5, 6, 7, 8)} == {0.0}
        # test rows by the training rows' figures; what is missing is the mean
        for part in (data.train, data.test, data.validation):
            own = part.inputs.numpy().astype(np.float64)
            scaled = np.nan_to_num((own[:, [0, 2]] - mean) / std)
            assert np.allclose(data.transform(part.inputs).numpy()[:, [0, 2]], scaled, atol=1e-5)
        assert (data.transform.plain.mean, data.transform.plain.std) == ((0.0,) * 9, (1.0,) * 9)
        assert InputTransform.from_dict(json.loads(json.dumps(data.transform.to_dict()))) == data.transform
    assert client_data(spec, 0, tmp_path / "cache").transform != client_data(spec, 1, tmp_path / "cache").transform
    assert len(whole.labels) == N


def test_a_constant_and_what_a_client_lacks_altogether_are_no_division_by_nothing(table, tmp_path):
    frame = pd.DataFrame({"a": [0.1] * N, "b": [1.0] + [np.nan] * (N - 1), "label": [0, 1] * (N // 2)})
    spec = DataSpec(str(table(frame)), 2, "iid", min_samples=1)
    for partition in (0, 1):
        data = client_data(spec, partition, tmp_path / "cache")
        assert data.transform.std[0] == 1.0
        assert bool(data.transform(data.train.inputs).isfinite().all())


def test_sites_agree_on_features_by_a_file(table, tmp_path):
    TableSchema(SCHEMA).save(tmp_path / "columns.json")
    assert TableSchema.load(tmp_path / "columns.json").columns == SCHEMA
    # a site that lacks values of every column
    frame = FRAME[(FRAME["job"] == "cook") & FRAME["age"].notna()].assign(noise=1.5)
    root = table(frame, name="site")
    (root / "classes.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=r"columns\.json"):
        decode(Recipe(str(root), listed="tables"), tmp_path / "cache")
    decoded(str(root), tmp_path / "cache")
    with pytest.raises(DataError, match=r"columns\.json"):
        decode(Recipe(str(root), listed="tables"), tmp_path / "cache")
    (root / "columns.json").write_bytes((tmp_path / "columns.json").read_bytes())
    found = decode(Recipe(str(root), listed="tables"), tmp_path / "cache")
    assert np.array_equal(np.array(found.inputs), expected(FRAME)[frame.index], equal_nan=True)


def test_truths_may_be_words_where_the_column_is_known_to_be_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("a,label\nTrue,x\nfalse,y\n1,x\n,y\n")
    TableSchema((Column("a", "number", missing=True),)).save(tmp_path / "columns.json")
    found = decoded(str(tmp_path / "t.csv"), tmp_path / "cache").inputs
    assert np.array_equal(np.array(found), [[1, 0], [0, 0], [1, 0], [np.nan, 1]], equal_nan=True)


BAD = [
    ({"job": "baker"}, r"'baker' in row 2 .* 'job'"),
    ({"sex": None}, r"no value in row 2 .* 'sex'"),
    ({"weight": None}, r"no value in row 2 .* 'weight'"),
    ({"weight": "heavy"}, r"'heavy' in row 2 .* 'weight'"),
    ({"age": "inf"}, r"'inf' in row 2 .* 'age'"),
]


@pytest.mark.parametrize(("cells", "words"), BAD)
def test_what_the_file_does_not_know_is_refused_by_name_and_left_out_where_rows_stand_alone(
    table, tmp_path, cells, words
):
    frame = FRAME.astype(object)
    frame.loc[2, list(cells)] = list(cells.values())
    root = table(frame)
    TableSchema(SCHEMA).save(root / "columns.json")
    with pytest.raises(DataError, match=words):
        decoded(str(root), tmp_path / "cache")
    (root / "classes.txt").write_text("a\nb\nc\n")
    found = decode(Recipe(str(root), listed="all", alone=True), tmp_path / "cache")
    assert np.array_equal(np.array(found.inputs), np.delete(expected(FRAME), 2, axis=0), equal_nan=True)
    assert found.labels.tolist() == np.delete(FRAME["label"].to_numpy(), 2).tolist()


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([f"a sentence of row {row}" for row in range(N)], "text-column"),
        (
            [*map(str, range(1, N)), "1,5"],
            "'1,5' in row 39 in the column 'more', whose other values are numbers: write decimals with a point",
        ),
        (["1"] * (N - 1) + ["-inf"], f"'-inf' in row {N - 1} "),
        (pd.date_range("2024", periods=N), "timestamp"),
    ],
)
def test_texts_ids_and_times_are_no_features(table, tmp_path, column, words):
    root = table(FRAME.assign(more=column), "parquet")
    with pytest.raises(DataError, match=words):
        decoded(str(root), tmp_path / "cache")
    TableSchema(SCHEMA[:2]).save(root / "columns.json")
    assert decoded(str(root), tmp_path / "cache").inputs.shape == (N, 3)


def test_texts_stay_texts_and_labels_and_groups_are_no_features(table, tmp_path):
    frame = FRAME.rename(columns={"label": "outcome"})
    found = decoded(str(table(frame)), tmp_path / "cache", columns=Columns(label="outcome", group="sex"))
    assert [column.name for column in found.columns] == ["age", "weight", "job"]
    with pytest.raises(DataError, match="label column"):
        decoded(str(table(frame)), tmp_path / "cache")
    assert not decoded(str(table(FRAME.assign(text="a"), name="texts")), tmp_path / "cache").columns


def test_models_of_images_say_that_rows_are_none():
    build("perceptron", (9,), 8, 3, 0)
    for name in ("tiny_cnn", "resnet18"):
        with pytest.raises(ModelError, match="flat vectors"):
            build(name, (9,), 8, 3, 0)
    assert torch.isfinite(build("tiny_perceptron", (9,), 8, 3, 0)(torch.zeros(2, 9))).all()
