"""Reads a run's results from its folder."""

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from protosphere.clients import Client
from protosphere.core.errors import SettingError
from protosphere.core.home import results_root, stores
from protosphere.core.settings import shown
from protosphere.record.folder import RunFolder, find_run
from protosphere.reports import frames
from protosphere.reports.report import write_report
from protosphere.reports.results import Prototypes as Prototypes
from protosphere.reports.results import Results, explain_damage, read_prototypes, read_results

if TYPE_CHECKING:
    from protosphere.reports.canvas import Plot


def load(run: str | os.PathLike[str] = "latest", results: str | os.PathLike[str] = "", trust: bool = False) -> "Run":
    """Load a run that was started here or elsewhere, finished or not.

    >>> protosphere.load(run.folder).summary["rounds"]
    2
    >>> protosphere.load("latest").name == run.name
    True

    Args:
        run: its folder, its name in the results folder, its number in `flwr ls`, or `latest`: the newest run with a
            finished round.
        results: the results folder; "" for that in PROTOSPHERE_HOME.
        trust: whether code in the folder, such as models of clients, may be run.

    Raises:
        SettingError: there is no such run.
    """
    place = Path(run).expanduser()
    if (place / "settings.json").exists():
        return Run(place, trust)
    if (place / "comparison.json").exists():
        raise SettingError(f"{place} is a comparison; protosphere.Comparison reads it.")
    root = results_root(os.fspath(results)).absolute()
    try:
        return Run(find_run(os.fspath(run), str(root)), trust)
    except SettingError:
        names = sorted(path.parent.name for path in root.glob("*/settings.json"))
        newest = f"; the newest there is {names[-1]}" if names else ""
        raise SettingError(
            f"run is {shown(os.fspath(run))}, but no run is there or in {root}{newest}; give a run's folder, its name, "
            'or "latest".'
        ) from None


class Run:
    """A run's results, read from its folder. For a run in progress, they are those so far.

    Attributes:
        folder: where it lies.
    """

    def __init__(self, folder: str | os.PathLike[str], trust: bool = False):
        self._trust = trust
        # a link may have another name than the run, under which clients store their models
        self.folder = Path(folder).expanduser().resolve()
        self._finished_results: tuple[int, Results] | None = None

    @property
    def name(self) -> str:
        """Of its folder: `<time>-<strategy>-<dataset>`."""
        return self.folder.name

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by full name, with the values that the run was started with.

        >>> run.settings["strategy"], run.settings["learning-rate"]
        ('local', 0.01)
        """
        return RunFolder(self.folder).settings()

    @property
    def status(self) -> dict[str, Any]:
        """The run's progress: `state` (`starting`, `running`, `completed`, `failed`, `stopped`), `round` of `rounds`,
        the `latest` accuracy, `seconds`, `problem`. If the run's process was killed, the state is `stopped`.

        >>> run.status["state"]
        'completed'
        """
        return RunFolder(self.folder).status()

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome as in summary.json: `headline`, `rules`, `floor`, `bytes` sent, `seconds`, `versions`.

        `stopped` is present if something ended the run before its last round. Accuracies are fractions of 1. For a run
        in progress, the summary covers its finished rounds, and its `status` is `not finished`.

        >>> sorted(run.summary["headline"])
        ['accuracy', 'clients', 'figure', 'round', 'rows', 'rule', 'unweighted']

        Raises:
            SettingError: no round is finished, or the folder was written by another version.
        """
        return dict(self._results.summary)

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per round; row r has the training metrics of round r and the accuracy of the models after it. Row 0
        is the evaluation of the untrained models.

        >>> run.rounds.index.tolist()
        [0, 1, 2]
        >>> bool(run.rounds["accuracy"].between(0, 1).all())
        True

        Columns: `accuracy`, `std` and `worst` (test samples, by the run's rule: the mean over all samples, the standard
        deviation over clients, the worst client), `validation`, `majority-class` (the baseline); `accuracy/<rule>` and
        `validation/<rule>` by every rule, and `ensemble` if it is measured; `clients_asked`, `clients_valid` and
        `clients_dropped` (how many); `loss` and its parts `loss/<part>`, `gradient_ratio`, `target_norm`,
        `prototype_norm` (means over clients), `server/<figure>`; `payload_up`, `payload_down`, `wire_up`, `wire_down`
        (bytes), `seconds`. Accuracies are fractions of 1; values that were not measured are NaN.

        Raises:
            SettingError: as `summary`.
        """
        return self._results.rounds.copy()

    @property
    def clients(self) -> pd.DataFrame:
        """One row per round and client: the client, then metrics as in `rounds`, and its `problem`.

        `round`, `client`, `name` (`client 3` if it has none), `model`; `test_rows`, `validation_rows`, `train_rows`,
        `steps`, `seconds` of training; `problem`, a sentence if it did not answer as asked.

        >>> run.clients.pivot(index="round", columns="client", values="accuracy").shape
        (3, 2)

        Under `privacy`, clients keep their accuracies to themselves, and `accuracy` is NaN.

        Raises:
            SettingError: as `summary`.
        """
        results = self._results
        with explain_damage(self.folder):
            return frames.over_clients(results.each_line(), results.roster, results.rule)

    def prototypes(self, round: int | None = None) -> Prototypes:
        """The prototypes of the newest round with any, uploaded and global, or those of an earlier round.

        A run keeps only those of its newest round. With the setting `keep_prototypes="all"`, it keeps those of every
        round: 4nkd bytes per round for n clients with k classes each.

        >>> protosphere.load(again.folder).prototypes().vectors.shape
        (6, 64)

        Args:
            round: the round; None for the newest one that is kept.

        Raises:
            SettingError: the method exchanges no prototypes, or those of that round are not kept.
        """
        prototypes = read_prototypes(self.folder, round)
        if not len(prototypes.labels) and not len(prototypes.clients):
            raise SettingError(
                f"{self.folder} keeps no prototypes: its method exchanges none, or no round is finished."
            )
        return prototypes

    def client(self, number: int) -> Client:
        """A client with its trained model, if it is stored on this machine.

        >>> run.client(0).model
        'tiny_perceptron'

        Args:
            number: from 0 on.

        Raises:
            SettingError: the run has no such client, or its model is on another machine.
            StoreError: its model cannot be read.
        """
        partitions = [entry["partition"] for entry in RunFolder(self.folder).roster()]
        if number not in partitions:
            raise SettingError(f"client is {shown(number)}, but {self.name} has {', '.join(map(str, partitions))}.")
        folder = stores(self.name) / str(number)
        if not folder.is_dir():
            raise SettingError(
                f"client {number} of {self.name} keeps no model in {folder}: it ran on another machine or with another "
                "PROTOSPHERE_HOME, or its models were deleted, as a comparison does."
            )
        return Client(folder, trust=self._trust)

    def report(self) -> "Report":
        """Write `report.html` again, and return it; a notebook displays it.

        >>> run.report().path.name
        'report.html'

        Raises:
            SettingError: as `summary`.
            OSError: the folder cannot be written.
        """
        return Report(write_report(self.folder))

    def plot(self, name: str = "accuracy-over-rounds", round: int | None = None) -> "Plot":
        """A plot of the report, as a matplotlib figure with `numbers` and `caption`, see `Plot`; a notebook shows it.

        >>> run.plot().axes[0].get_xlabel()
        'round'
        >>> protosphere.load(again.folder).plot("map-of-prototypes", round=1).name
        'map-of-prototypes'

        Args:
            name: `accuracy-over-rounds`, `loss-over-rounds`, `accuracy-over-bytes`, `accuracy-by-client`,
                `samples-by-client-and-class`,
                `confusion` (if the setting of that name asks for it), `distances-of-global-prototypes`,
                `map-of-prototypes`, `margins-of-global-prototypes`, `values-of-prototypes` or `alignment`.
            round: the round of the prototypes, as in `prototypes`; None for the newest ones that are kept.

        Raises:
            SettingError: as `summary`; there is no such plot, or the run has no data for it.
        """
        from protosphere.reports.plots import draw

        return draw(name, self._results, read_prototypes(self.folder, round))

    @property
    def _results(self) -> Results:
        # the run may have continued since
        ended = self.folder / "summary.json"
        written = ended.stat().st_mtime_ns if ended.exists() else 0
        if self._finished_results is not None and self._finished_results[0] == written:
            return self._finished_results[1]
        results = read_results(self.folder)
        if results.finished:
            self._finished_results = written, results
        return results

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Run({self.name!r})"


@dataclass(frozen=True)
class Report:
    """A report: one self-contained file. A notebook displays it.

    Attributes:
        path: the file.
    """

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text("utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:40em;border:0"></iframe>'
