"""A client's private state: how it is built from settings and a model's name, and how it is stored on disk.

There is one folder per run and client, with two generations and atomic writes. Each generation is one safetensors file,
named after its round. Flower's own `context.state` is in a process's memory and would be lost with it."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from protosphere.core.devices import exact_on
from protosphere.core.errors import UserError
from protosphere.core.files import NAME, read_tensors, replacing, write_tensors
from protosphere.core.seeds import derive
from protosphere.data.client_data import Transform
from protosphere.models import build, seed_name
from protosphere.models.split import channels_last
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies import Run
from protosphere.strategies.contract import EQUAL_WEIGHT, ClientState, Objective
from protosphere.wire.payloads import Payload, from_tensors, to_tensors

FORMAT = 5  # of client.json and the state files


def describe(run: Run, partition: int, model: str, class_names: Sequence[str], transform: Transform) -> dict[str, Any]:
    """The content of client.json: everything except tensors from which a client is rebuilt."""
    method_settings = {
        f"{prefix}.{name.replace('_', '-')}": value
        for prefix, kind in run.method.settings.items()
        for name, value in asdict(run.options[kind]).items()
    }
    return {
        "format": FORMAT,
        "partition": partition,
        "strategy": run.settings.strategy,
        "model": model,
        "feature_dim": run.settings.feature_dim,
        "class_names": list(class_names),
        "input": transform.to_dict(),
        "rule": run.inference,
        "settings": run.settings.model_dump(by_alias=True) | method_settings,
    }


def new_state(
    objective: Objective, model: str, input_shape: tuple[int, ...], partition: int, device: torch.device
) -> ClientState:
    """The seeded initial model of a client; with `shared-init` it is the same for all clients of one architecture.

    Raises:
        ModelError: the model cannot be built.
    """
    settings = objective.settings
    whose = () if settings.shared_init else (partition,)
    seed = derive(settings.seed, "model", seed_name(model), *whose)
    activation = settings.feature_activation
    network = build(model, input_shape, settings.feature_dim, objective.num_classes, seed, activation)
    parameters = sum(p.numel() for p in network.parameters())
    return ClientState(channels_last(objective.build(network, seed)).to(device), parameters=parameters)


def lay_out(objective: Objective, state: ClientState, received: Payload | None, device: torch.device) -> None:
    """Turn the download, with its constants, into the state's targets."""
    targets = objective.targets(state, received)
    state.targets = None if targets is None else targets.to(device=device)
    state.table = None if state.targets is None else state.targets.table(objective.num_classes)


def size_of(state: ClientState) -> int:
    """The size of its tensors in bytes."""
    tensors = [*state.module.state_dict().values(), *state.extra.values(), *state.optimiser.values()]
    tensors += [] if state.prototypes is None else state.prototypes.fields().values()
    tensors += [] if state.covariance is None else [state.covariance]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


KEPT_GENERATIONS = 2
POOL, RECEIVED, RECEIVED_BEFORE = "pool", "received", "received-before"  # files
# numbers in these files: a pool's weight; the round that made the download, and its constants
WEIGHT, MADE, CONSTANT = "weight", "made", "constant/"
NO_NUMBERS: Mapping[str, float] = MappingProxyType({})
FROM_A_COPY = "restore it from a copy."
AGAIN = "The next round brings it again."
GENERATION = re.compile(r"round-(\d{6,})\.safetensors")


class StoreError(UserError):
    """A stored state cannot be used."""

    public = "its stored state cannot be used: restore its folder from a copy, or start a new run"


class Store:
    """The folder of one client in one run.

    It holds `round-<r>.safetensors` (weights and buffers, local prototypes with counts, covariance, the method's
    tensors), `received.safetensors` (the last download and the run's constants, for prediction) and `client.json`.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @contextmanager
    def lock(self, seconds: float) -> Iterator[None]:
        """Lock this store against other processes. The system releases the lock when the process dies.

        Args:
            seconds: the longest wait for another process.

        Raises:
            StoreError: another process holds it, or the folder cannot be written.
        """
        lock = FileLock(self.folder / ".lock", timeout=seconds)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise StoreError(
                f"another process of this site still uses {self.folder}; end it, or wait until it has ended."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be written ({error.strerror}); free space there, or set PROTOSPHERE_HOME to a "
                "writable folder."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def begin_anew(self, round_number: int) -> None:
        """Remove all files if a power cut has damaged one and no training of the client counts yet: they had not
        reached the disk and are made again as they were."""
        rounds = self.generations()
        if not rounds or any(0 < number < round_number for number in rounds):
            return
        try:
            self.description()
            _read(self._path(0), "")
        except StoreError:
            for name in self._names():
                (self.folder / name).unlink(missing_ok=True)

    def newest_before(self, round_number: int, trained: int = 0, going_back: bool = True) -> int | None:
        """The round of the generation from which `round_number` starts; None if there never was one.

        Args:
            trained: the last round in which the server accepted this client's training (0: none).
            going_back: delete the generations of that round or later, because the server went back. An evaluation
                deletes nothing: its message may arrive late, after the next training.

        Raises:
            StoreError: the server went back further than the generations (which are left unchanged), or a state that
                the server knows is lost.
        """
        rounds = self.generations()
        later_rounds = [number for number in rounds if number >= round_number]
        if later_rounds and len(later_rounds) == len(rounds):
            raise StoreError(
                f"round {round_number} cannot start: {self.folder} no longer holds the state of an earlier round, only "
                f"of {', '.join(map(str, reversed(later_rounds)))}; resume from the run's newest checkpoint with as "
                "many `rounds` or more, or start a new run.",
            )
        for number in later_rounds if going_back else ():
            self._path(number).unlink(missing_ok=True)
        newest = max((number for number in rounds if number < round_number), default=None)
        if trained and (newest is None or newest < trained):
            raise StoreError(
                f"round {round_number} cannot start: {self.folder} does not hold the model of round {trained}, from "
                "which this client sent its last prototypes; restore the folder (in PROTOSPHERE_HOME), or start a "
                "new run.",
            )
        return newest

    def generations(self) -> list[int]:
        """The rounds of all generations, newest first; copies of the files that a user made do not count."""
        matches = map(GENERATION.fullmatch, self._names())
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def save(self, round_number: int, state: ClientState) -> None:
        """Write the generation of `round_number`; remove all but the two newest, and temporary files of killed
        processes."""
        for name in self._names():
            if name.endswith(".tmp"):
                (self.folder / name).unlink(missing_ok=True)
        self._write(self._path(round_number), _flatten(state))
        for old_round in self.generations()[KEPT_GENERATIONS:]:
            self._path(old_round).unlink(missing_ok=True)

    def load_into(self, state: ClientState, round_number: int, device: torch.device) -> None:
        """Fill a freshly built state from the generation of `round_number`.

        Raises:
            StoreError: the file is damaged or holds another model. Continuing from an older generation unasked would
                change the run's metrics.
        """
        path = self._path(round_number)
        tensors = _read(path, "restore it from a copy, or start a new run.", exact_on(device))
        parts: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            part, _, entry = name.partition("/")
            parts.setdefault(part, {})[entry] = tensor
        try:
            state.module.load_state_dict(parts.get("module", {}))
        except RuntimeError as error:
            raise StoreError(
                f"{path} holds another model than this client now has ({' '.join(str(error).split())}); start the node "
                "with the model that began the run, or start a new run.",
            ) from None
        if "prototypes" in parts:
            try:
                state.prototypes = PrototypeSet(**parts["prototypes"])
            except (TypeError, ValueError) as error:
                raise StoreError(f"{path} is damaged ({error}); restore it from a copy.") from None
        state.covariance = parts.get("covariance", {}).get("")
        state.extra, state.optimiser = (
            {name: tensor.to(device) for name, tensor in parts.get(part, {}).items()} for part in ("extra", "optimiser")
        )

    def save_named(self, name: str, payload: Payload, numbers: Mapping[str, float] = NO_NUMBERS) -> None:
        """Store parts of messages and numbers in a file of this name, beside the state."""
        scalars = {key: torch.tensor(number, dtype=torch.float64) for key, number in numbers.items()}
        self._write(self._named(name), to_tensors(payload) | scalars)

    def load_named(self, name: str, remedy: str = FROM_A_COPY) -> tuple[Payload, dict[str, float]] | None:
        """Load what `save_named` stored; None if there is no such file.

        Raises:
            StoreError: the file is damaged.
        """
        path = self._named(name)
        if not path.exists():
            return None
        tensors = _read(path, remedy)
        parts = {key: tensor for key, tensor in tensors.items() if key.startswith("part/")}
        try:
            numbers = {key: float(tensor) for key, tensor in tensors.items() if key not in parts}
            return from_tensors(parts), numbers
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise StoreError(f"{path} holds no prototypes ({error}); {remedy}") from None

    def save_received(self, payload: Payload, constants: Mapping[str, float], source_round: int = 0) -> None:
        """Store the last download; training reads it if the method sends it only once.

        For such a method the previous download is stored as well: an evaluation brings the download of its round, and a
        server that is killed then repeats that round from the previous one.

        Args:
            source_round: the round that made the download.
        """
        numbers = {f"{CONSTANT}{name}": value for name, value in constants.items()}
        if source_round:
            numbers[MADE] = source_round
            # a damaged file is useless
            with suppress(StoreError):
                before = self.load_named(RECEIVED, AGAIN)
                if before is not None and before[1].get(MADE) != source_round:
                    self.save_named(RECEIVED_BEFORE, *before)
        self.save_named(RECEIVED, payload, numbers)

    def load_received(self) -> tuple[Payload | None, dict[str, float]]:
        """Load what `save_received` stored: the payload (None if there was none) and the constants.

        Raises:
            StoreError: the file is damaged.
        """
        payload, numbers = self.load_named(RECEIVED) or (None, {})
        return payload, {name.removeprefix(CONSTANT): number for name, number in numbers.items() if name != MADE}

    def load_held(self, source_round: int) -> Payload:
        """Load the stored download that this round made.

        Raises:
            StoreError: the file is lost, damaged or from another round; the server then sends the download again.
        """
        for name in (RECEIVED, RECEIVED_BEFORE):
            stored = self.load_named(name, AGAIN)
            if stored is not None and stored[1].get(MADE) == source_round:
                return stored[0]
        raise StoreError(
            f"{self._named(RECEIVED)} does not hold what round {source_round} has made, which the server has sent "
            f"already. {AGAIN}",
        )

    def load_pool(self) -> tuple[float, Payload | None]:
        """Load `ClientState.pool_weight` and `ClientState.space` from the last evaluation, for the rules `encoder` and
        `pool`; equal weights and None without one. Only prediction reads them, since each evaluation makes its own.

        Raises:
            StoreError: the file is damaged.
        """
        space, numbers = self.load_named(POOL, "restore it from a copy, or let the run go on.") or (None, {})
        return numbers.get(WEIGHT, EQUAL_WEIGHT), space or None

    def save_pool(self, weight: float, space: Payload | None) -> None:
        """The inverse of `load_pool`."""
        self.save_named(POOL, space or {}, {WEIGHT: weight})

    def describe(self, description: dict[str, Any]) -> None:
        """Write client.json once: what prediction needs besides the tensors."""
        path = self.folder / "client.json"
        if not path.exists():
            self._replace(path, lambda temporary: temporary.write_text(json.dumps(description, indent=2) + "\n"))

    def description(self) -> dict[str, Any]:
        """Read what `describe` wrote.

        Raises:
            StoreError: there is none, or it is damaged.
        """
        path = self.folder / "client.json"
        try:
            description = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}); restore it from a copy.") from None
        if not isinstance(description, dict):
            raise StoreError(f"{path} does not describe a client; restore it from a copy.")
        return description

    def _names(self) -> list[str]:
        """The names of all files in the folder.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            # pathlib's glob is several times slower, and finds nothing in an unreadable folder
            return os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be read ({error.strerror}); make it readable for the user who runs this, or set "
                "PROTOSPHERE_HOME to a writable folder.",
            ) from None

    def _named(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _path(self, round_number: int) -> Path:
        return self.folder / f"round-{round_number:06d}.safetensors"

    def _write(self, path: Path, tensors: dict[str, torch.Tensor]) -> None:
        self._replace(path, lambda temporary: write_tensors(temporary, tensors, {NAME: path.stem}))

    def _replace(self, path: Path, write: Callable[[Path], object]) -> None:
        """Write a file completely or not at all.

        Raises:
            StoreError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(path, may_wait=True) as temporary:
                write(temporary)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"{path} cannot be written ({reason}); free space there, or set PROTOSPHERE_HOME to a writable folder.",
            ) from None


def _read(path: Path, remedy: str, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    try:
        return read_tensors(path, device)[0]
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}), perhaps after a power cut; {remedy}",
        ) from None


def _flatten(state: ClientState) -> dict[str, torch.Tensor]:
    tensors = {f"module/{name}": tensor for name, tensor in state.module.state_dict().items()}
    if state.prototypes is not None:
        tensors |= {f"prototypes/{name}": tensor for name, tensor in state.prototypes.fields().items()}
    if state.covariance is not None:
        tensors["covariance/"] = state.covariance
    tensors |= {f"extra/{name}": tensor for name, tensor in state.extra.items()}
    return tensors | {f"optimiser/{name}": tensor for name, tensor in state.optimiser.items()}
