"""The progress of a comparison: a bar on a terminal, a line for each run that ends anywhere."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from protosphere.comparison.execution import Progress as State
from protosphere.core.text import duration

MOST_SHOWN = 3


class Bar:
    """Shows the states that it is told."""

    def __init__(self, console: Console):
        columns = [
            TextColumn("runs"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.fields[running]}", markup=False),
        ]
        # a file gets the lines alone
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._console = console
        self._task = self._progress.add_task("", total=None, left="", running="")
        self._printed_count = 0

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, state: State) -> None:
        """Show how far the runs are."""
        for finished in state.ended[self._printed_count :]:
            how = f"failed: {finished.reason}" if finished.reason else f"done in {duration(finished.seconds)}"
            number = state.before + self._printed_count + 1
            # where there is no bar, the newest line says it
            is_newest = number == state.before + len(state.ended)
            left = f"; about {left_words(state)}" if is_newest and self._needs_estimate(state) else ""
            line = Text(f"{number}/{state.total} {finished.trial.title}: {how}{left}")
            self._progress.console.print(line, soft_wrap=True)
            self._printed_count += 1
        running = [f"{job.trial.title} (round {job.done}/{job.rounds})" for job in state.running]
        more = f" and {len(running) - MOST_SHOWN} more" if len(running) > MOST_SHOWN else ""
        self._progress.update(
            self._task,
            total=state.total,
            completed=state.before + len(state.ended),
            left=left_words(state),
            running="; ".join(running[:MOST_SHOWN]) + more,
        )

    def _needs_estimate(self, state: State) -> bool:
        return not self._console.is_terminal and bool(state.seconds_left())


def left_words(state: State) -> str:
    """The time left, or that it cannot be told yet."""
    seconds = state.seconds_left()
    return "time left unknown before the first round" if seconds is None else f"{duration(seconds)} left"
