"""What a run can have beside its rounds: each a file, and a line here. The rounds call them in this order."""

from protosphere.server_app.ensemble import Ensemble
from protosphere.server_app.feature import Feature
from protosphere.server_app.features.collapse import Collapse
from protosphere.server_app.features.confusion import Confusion
from protosphere.server_app.features.roc_auc import RocAuc
from protosphere.server_app.features.snapshots import Snapshots
from protosphere.server_app.features.stopping import Stopping
from protosphere.server_app.held_downloads import DownloadOnce
from protosphere.server_app.live_figures import LiveFigures
from protosphere.server_app.membership import Membership
from protosphere.server_app.releases import Privacy
from protosphere.strategies import Run

FEATURES: dict[str, type[Feature]] = {
    "membership": Membership,
    "collapse": Collapse,
    "privacy": Privacy,
    "download-once": DownloadOnce,
    "ensemble": Ensemble,
    "confusion": Confusion,
    "roc auc": RocAuc,
    "early stopping": Stopping,
    "snapshots": Snapshots,
    "live figures": LiveFigures,
}


def refuse_unfit_features(run: Run) -> None:
    """Ask each feature that a run has, before the run has a folder.

    Raises:
        SettingError: a feature cannot work on this machine.
    """
    for feature in FEATURES.values():
        if feature.applies(run):
            feature.refuse(run.settings)
