"""The product's ServerApp on a grid with a clock."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from probe.clock import ClockedGrid

from protosphere.server_app.app import app as product

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The product's run."""
    product(ClockedGrid(grid), context)  # it asks for no more than this grid has
