"""What a client's folder predicts against what the run's last evaluation counted."""

import shutil

from flwr.app import Context, RecordDict

from protosphere.client_app.client import Client
from protosphere.record.folder import RunFolder
from protosphere.serving.predict import open_trained
from protosphere.strategies import load_method


def rows_of(folder, partition, clients=2):
    """A client's own test and validation rows."""
    node = {"partition-id": partition, "num-partitions": clients}
    data = Client(Context(1, 2, node, RecordDict(), RunFolder(folder).settings())).data
    return data.test, data.validation


def _counted(folder, partition):
    """Rule -> correct predictions on test and on validation samples, as the run's last evaluation counted them."""
    shares = RunFolder(folder).lines()[-1]["clients"][str(partition)]["evaluation"]
    rows = shares.pop("rows")
    for baseline in ("majority-class", "encoder-local", "pool-local"):
        shares.pop(baseline, None)
    return {rule: [round(a * n) for a, n in zip(pair, rows, strict=True)] for rule, pair in shares.items()}


def assert_predicts_as_counted(folder, clients, settings, elsewhere, monkeypatch):
    """Check every rule, with a copy of the clients' folders and an empty PROTOSPHERE_HOME."""
    rows = [rows_of(folder, partition, clients) for partition in range(clients)]
    shutil.copytree(folder.parents[1] / "clients" / folder.name, elsewhere / folder.name)
    monkeypatch.setenv("PROTOSPHERE_HOME", str(elsewhere / "gone"))
    method = load_method(settings["strategy"])
    for partition in range(clients):
        expected = _counted(folder, partition)
        trained = open_trained(elsewhere / folder.name / str(partition), "cpu")
        assert (trained.run, trained.partition) == (folder.name, partition)
        assert trained.find_rule() == settings.get("inference", method.inference)
        correct = {}
        for rule in trained.rules():
            labels = [trained.scores(rule, part.inputs).argmax(dim=1) for part in rows[partition]]
            correct[rule] = [
                int((label == part.labels).sum()) for label, part in zip(labels, rows[partition], strict=True)
            ]
        assert correct == expected
