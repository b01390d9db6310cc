"""The progress of a comparison: a bar on a terminal, a line for each run that ends anywhere."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from protosphere.comparison.execution import Progress as State
from protosphere.core.text import duration

MOST_SHOWN = 3


class Bar:
    """Shows how far the trials are."""

    def __init__(self, console: Console):
        self._progress = Progress(
            TextColumn("runs"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[finished]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[running]}", markup=False),
            console=console,
            # a run may take hours, and the pace is that of all so far
            speed_estimate_period=float("inf"),
            transient=True,
            # a file gets the lines alone
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, finished="", running="")
        self._printed_count = 0

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, state: State) -> None:
        """Show how far the runs are, and each that has ended with a line."""
        for finished in state.ended[self._printed_count :]:
            self._printed_count += 1
            how = f"failed: {finished.reason}" if finished.reason else f"done in {duration(finished.seconds)}"
            number = f"{state.before + self._printed_count}/{state.total}"
            self._progress.console.print(Text(f"{number} {finished.trial.title}: {how}"), soft_wrap=True)
        running = [f"{job.trial.title} (round {job.done}/{job.rounds})" for job in state.running]
        more = f" and {len(running) - MOST_SHOWN} more" if len(running) > MOST_SHOWN else ""
        finished_count = state.before + len(state.ended)
        self._progress.update(
            self._task,
            total=state.total,
            completed=finished_count + sum(job.done / job.rounds for job in state.running),
            finished=f"{finished_count}/{state.total}",
            running="; ".join(running[:MOST_SHOWN]) + more,
        )
