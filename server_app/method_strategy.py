"""A method as a Flower strategy, for a user's own ServerApp."""

from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from protosphere.core.errors import SettingError
from protosphere.core.settings import Scalar, refuse_relative_paths
from protosphere.server_app.callbacks import OnRound
from protosphere.server_app.opening import open_folder
from protosphere.server_app.status import record_run
from protosphere.server_app.strategy import PrototypeStrategy
from protosphere.strategies import read_settings, refuse_foreign, settings_by_keyword


class MethodStrategy(PrototypeStrategy):
    """The strategy of one method, with the run's settings as arguments: `ProtoNorm(gamma=10, rounds=20)`.

    Argument names are setting names with `_` instead of `-`; the method's own settings have no prefix. Clients run
    `protosphere.flower_client:app` and get the settings with each message. `start` makes the run's folder and locks it
    until the run has ended.

    Raises:
        SettingError: one sentence on the first setting that cannot be used.
    """

    method_name: str

    def __init__(self, on_round: OnRound | None = None, **settings: Scalar):
        if "strategy" in settings:
            raise SettingError(f"the strategy of `{type(self).__name__}` is `{self.method_name}`; take `strategy` out.")
        self._run_config = {"strategy": self.method_name, **settings_by_keyword(self.method_name, settings)}
        refuse_foreign(self._run_config)
        run = read_settings(self._run_config)
        refuse_relative_paths(run.settings)
        super().__init__(run, None, on_round, self._run_config)

    def _run_rounds(self, grid: Grid, num_rounds: int | None, timeout: float | None) -> Result:
        self.folder = open_folder(self.run, self._run_config)
        with self.folder.lock(), record_run(self.run, self.folder, 0, grid):
            return super()._run_rounds(grid, num_rounds, timeout)
