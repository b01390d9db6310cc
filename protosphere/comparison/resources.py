"""How many cells run at a time, and what of this machine's cores and GPUs each of them gets."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from protosphere.comparison.trials import Cell
from protosphere.core.errors import SettingError
from protosphere.launch.flower import check_resources
from protosphere.launch.ray_cluster import Cluster

GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Share:
    """Jobs that run at a time, each on `cores` cores and on the GPUs that `gpus` has for it (all, if empty).

    Attributes:
        in_process: without Flower, each cell in one process.
        ray: the address of the Ray cluster of which each cell takes `cpus_per_client` and `gpus_per_client`, as a task
            in one process; empty for this machine.
        place: where that is, in words.
        reports: whether each cell's run ends with a report of its own.
        workers: `--workers` of each cell's run, in one process; None where not set.
    """

    jobs: int
    cores: int
    gpus: tuple[str, ...] = ()
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    in_process: bool = False
    ray: str = ""
    place: str = ""
    reports: bool = False
    workers: int | None = None

    def __str__(self) -> str:
        resources = f"{self.cores} core{'s' * (self.cores > 1)}"
        if self.gpus:
            resources += f" and GPU {' or '.join(sorted(set(self.gpus)))}"
        if self.ray and self.gpus_per_client:
            resources += f" and {self.gpus_per_client:g} GPU"
        if self.ray:
            resources += f", on {self.place}"
        return f"{self.jobs} at a time with {resources}{' each' * (self.jobs > 1)}"

    def flags(self) -> list[str]:
        """For `protosphere run`."""
        flags = ["-c", f"report={str(self.reports).lower()}"]
        if not self.in_process:
            flags += ["--flower", "--cpus-per-client", str(self.cpus_per_client)]
            return [*flags, "--gpus-per-client", f"{self.gpus_per_client:g}"]
        return flags if self.workers is None else [*flags, "--workers", str(self.workers)]

    def environment(self, place: int) -> dict[str, str]:
        """What a cell gets that runs in one of the `jobs` places, counted from 0."""
        mine = {GPUS: self.gpus[place]} if self.gpus else {}
        # Ray would start a worker for every core that it sees, in every job
        return mine if self.in_process else mine | {"RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": self.cores})}


def share(
    cells: Sequence[Cell],
    *,
    jobs: int | None = None,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    in_process: bool = False,
    workers: int = 1,
) -> Share:
    """What each job gets. Without `jobs`: on GPUs a job each, else as many as the cores hold.

    Over Flower a cell's clients run at a time as far as cores go, so a cell with many clients fills the machine; in
    one process a cell takes the setting `threads` of cores, of each of its workers.

    Raises:
        SettingError: this machine lacks what was asked for.
    """
    check_resources(cpus_per_client, gpus_per_client)
    _refuse_none(jobs)
    cores = os.cpu_count() or 1
    if in_process:
        threads, on_gpu = _derive_needs(cells)
        cores_per_cell = threads * workers
    else:
        cores_per_cell = cpus_per_client * max((cell.clients for cell in cells), default=1)
        on_gpu = gpus_per_client > 0
    gpus = _gpus() if on_gpu else []
    most = max(1, len(gpus) // max(1, math.ceil(gpus_per_client))) if gpus else max(1, cores // cores_per_cell)
    number = min(jobs or most, len(cells) or 1)
    cores_per_job = max(cpus_per_client, cores // number // cpus_per_client * cpus_per_client)
    places = tuple(",".join(gpus[place % len(gpus) :: number]) for place in range(number)) if gpus else ()
    return Share(number, cores_per_job, places, cpus_per_client, gpus_per_client, in_process)


def cluster_share(
    cells: Sequence[Cell],
    cluster: Cluster,
    *,
    jobs: int | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
) -> Share:
    """What each cell gets of a Ray cluster: the setting `threads` of cores, and a GPU where it may train on one and the
    cluster has any, unless `cpus` and `gpus` say otherwise.

    Raises:
        SettingError: none of its nodes has what was asked for.
    """
    _refuse_none(jobs)
    threads, on_gpu = _derive_needs(cells)
    cpus = threads if cpus is None else cpus
    gpus = float(on_gpu and any(node.gpus >= 1 for node in cluster.nodes)) if gpus is None else gpus
    most = cluster.holds(cpus, gpus)
    number = min(jobs or most, most, len(cells) or 1)
    return Share(number, cpus, (), cpus, gpus, in_process=True, ray=cluster.address, place=str(cluster))


def _refuse_none(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise SettingError(f"--jobs is {jobs}, but one must run at least.")


def _derive_needs(cells: Sequence[Cell]) -> tuple[int, bool]:
    """The cores that a cell takes in one process, and whether any may train on a GPU."""
    threads = max((int(cell.settings["threads"]) for cell in cells), default=1)
    return threads, any(cell.settings["device"] != "cpu" for cell in cells)


def _gpus() -> list[str]:
    """The CUDA devices that this process may use, as the environment names them."""
    from torch.cuda import device_count

    named = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return named[: device_count()] or [str(index) for index in range(device_count())]
