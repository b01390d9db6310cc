"""Loads a trained client from its store, without its training data, and predicts new inputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, softmax

from protosphere.client_app.evaluate import ROWS_AT_ONCE, features_of, received_scores, rule_scores
from protosphere.client_app.store import FORMAT, Store, StoreError, lay_out, new_state
from protosphere.core.devices import device_of, exact_on
from protosphere.core.errors import DataError, SettingError
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import RECEIVED, device_name, full_encoder_name
from protosphere.data.client_data import InputTransform, Rows, TokenTransform, Transform
from protosphere.data.forms.images import resized, too_deep
from protosphere.models.text import Tokens
from protosphere.serving.encoder_rule import Judge, encoder_of, judge_of
from protosphere.strategies import read_settings, unpacked
from protosphere.strategies.companions import companion_of
from protosphere.strategies.contract import ClientState, Objective, SpaceObjective
from protosphere.strategies.encoder_space import directions
from protosphere.strategies.release import POOL, RULE
from protosphere.strategies.trust import COMPANION, refuse_untrusted

PARTS = {"partition": int, "model": str, "class_names": list, "input": dict, "rule": str, "settings": dict}
PIXEL = 255  # full scale of an image channel
# the rules whose scores are log-probabilities, up to a constant per input
WITH_PROBABILITIES = ("classifier", "discriminant", RECEIVED, POOL)


@dataclass(frozen=True)
class Trained:
    """A client for predictions.

    Attributes:
        run, partition: the names of the folders of its store.
        made_in: the round of its state.
        rule: the client's own rule, from the run's settings; it may be unavailable.
        tokens: makes token ids of texts; None if the model does not take them.
        judge: for the rule `encoder`; None without it.
        arrived: the client with the newest received weights, for the rule `received`; None without that rule.
        notices: why rules are missing, one sentence each.
    """

    run: str
    partition: int
    model: str
    class_names: tuple[str, ...]
    rule: str
    made_in: int
    objective: Objective
    state: ClientState
    transform: Transform
    device: torch.device
    tokens: Tokens | None = None
    arrived: ClientState | None = None
    judge: Judge | None = None
    notices: tuple[str, ...] = ()

    def rules(self) -> tuple[str, ...]:
        """The rules that this client can apply."""
        nothing = torch.zeros(0, self.objective.settings.feature_dim, device=self.device)
        rules = tuple(rule_scores(self.objective, self.state, nothing))
        rules = rules if self.arrived is None else (*rules, *received_scores(self.objective, self.arrived, nothing))
        if self.judge is None:
            return rules if self.pooled(nothing, None) is None else (*rules, POOL)
        if self.judge.tokens not in (None, self.tokens):
            # if its encoder and its model use different tokenizers, no input fits both
            return (*rules, RULE)
        none = self.judge.scores(torch.zeros(0, self.judge.dim, dtype=torch.float64))
        return (*rules, RULE) if self.pooled(nothing, none) is None else (*rules, RULE, POOL)

    def pooled(self, z: Tensor, encoded: Tensor | None) -> Tensor | None:
        """The rule `pool`, as in `SpaceObjective.pooled`; None if the method has none."""
        return self.objective.pooled(self.state, z, encoded) if isinstance(self.objective, SpaceObjective) else None

    def judged_by(self, rule: str) -> "tuple[Trained, str]":
        """The equivalent client and rule: `received` is the classifier of the received weights, `received-<rule>` the
        method's own rule with them."""
        name, _, base_rule = rule.partition("-")
        if name != RECEIVED or self.arrived is None:
            return self, rule
        return replace(self, state=self.arrived, arrived=None), base_rule or "classifier"

    def chosen(self, rule: str = "") -> str:
        """The rule of that name, or the client's own for "".

        Raises:
            SettingError: there is no such rule, or this client lacks what it needs.
        """
        name, ready = rule or self.rule, self.rules()
        if name not in ready:
            raise SettingError(
                f"rule {name!r} cannot be applied by client {self.partition} of run "
                f"{self.run}; it can apply {', '.join(ready)}: name one with --rule."
            )
        return name

    @torch.no_grad()
    def scores(self, rule: str, inputs: Tensor) -> Tensor:
        """Scores of inputs (n, ...) as stored: (n, K), higher is better; -inf for a class unknown to the rule."""
        trained, rule = self.judged_by(rule)
        if trained is not self:
            return trained.scores(rule, inputs)
        with limited_threads(self.objective.settings.threads):
            if rule == RULE:
                return self._encode(inputs)
            rows = Rows(inputs.to(self.device), torch.zeros(len(inputs), dtype=torch.int64))
            z = features_of(self.objective, self.state, rows, self.transform)
            if rule == POOL:
                encoded = None if self.judge is None else self._encode(inputs).to(exact_on(self.device))
                pooled = self.pooled(z, encoded)
                assert pooled is not None
                return pooled
            return rule_scores(self.objective, self.state, z)[rule]

    def _encode(self, inputs: Tensor) -> Tensor:
        """Scores by the rule `encoder`."""
        assert self.judge is not None
        encoder = self.judge.encoder()
        prepared = inputs.cpu() if self.judge.tokens else self.transform.plain(inputs.cpu())
        return self.judge.scores(directions(encoder(prepared), self.objective.settings.encoder_radius))


def open_trained(folder: Path, device: str = "auto", encoder: str = "", trust: bool = False) -> Trained:
    """Load the client whose store is `folder`, PROTOSPHERE_HOME/clients/<run>/<partition>.

    Args:
        encoder: the location of the public encoder for the rule `encoder`; "": its location at the client.
        trust: whether code in the folder may be run.

    Raises:
        StoreError: it is no such folder, another version wrote it, or it holds no usable state.
        SettingError: the device is missing, or code may not be run.
        ModelError: the model cannot be built here.
    """
    about = _description(folder)
    settings = unpacked(about["settings"])
    encoder = full_encoder_name(encoder)
    encoders = [] if encoder else [("encoder", encoder_of(about, settings))]
    refuse_untrusted(
        folder, [("strategy", str(settings.get("strategy", ""))), ("model", about["model"]), *encoders], trust
    )
    run = read_settings(settings)
    names = tuple(about["class_names"])
    objective = run.method.objective(run.settings, run.options, len(names))
    # built next to the client's own model
    refuse_untrusted(folder, [(COMPANION, companion_of(objective))], trust)
    place, transform = _device(device), _transform(folder, about["input"])
    tokens = Tokens(about["model"], run.settings.max_tokens) if isinstance(transform, TokenTransform) else None
    store = Store(folder)
    state = new_state(objective, about["model"], transform.shape, about["partition"], place)
    made_in = _load_newest(store, state, place)
    state.pool_weight, state.space = store.load_pool()
    received, state.constants = store.load_received()
    judge = judge_of(run, objective, about, transform.shape, received, state.space, store, encoder)
    notices = []
    if state.prototypes is None and run.settings.evaluate_every != 1:
        notices.append(
            f"No evaluation followed on round {made_in} (`evaluate-every` is {run.settings.evaluate_every}), so there "
            "are no prototypes yet: rules that need them are available after the next evaluation."
        )
    lay_out(objective, state, received, place)
    state.module.eval()
    received_state = objective.evaluation_state(state, received) if RECEIVED in run.method.rules else None
    home = folder.absolute()
    return Trained(
        run=home.parent.name,
        partition=about["partition"],
        model=about["model"],
        class_names=names,
        rule=about["rule"],
        made_in=made_in,
        objective=objective,
        state=state,
        transform=transform,
        device=place,
        tokens=tokens,
        arrived=received_state,
        judge=judge,
        notices=tuple(notices),
    )


@dataclass(frozen=True)
class Answer:
    """A client's answer for one input.

    Attributes:
        source: the file, or the text itself.
        problem: why there is no answer, in a sentence; all further fields are then empty.
        label: the predicted class.
        score: by the rule; higher is better.
        confidence: the class's probability; None for a rule without probabilities.
        unknown: the columns of a row with a category that no training sample had.
    """

    source: str
    problem: str = ""
    label: int = -1
    score: float = -torch.inf
    confidence: float | None = None
    unknown: tuple[str, ...] = ()


Input = Path | str | BytesIO  # a file, a text, or an image in memory


def predict(trained: Trained, rule: str, sources: Sequence[Input]) -> Iterator[Answer]:
    """One answer per input; an unreadable input gets an answer with its problem.

    Raises:
        SettingError: immediately, if the client's model does not take such inputs.
    """
    _refuse_unfit(trained, sources)
    starts = range(0, len(sources), ROWS_AT_ONCE)
    return chain.from_iterable(_answers_of(trained, rule, sources[start : start + ROWS_AT_ONCE]) for start in starts)


def inputs_of(trained: Trained, rule: str, sources: Sequence[Path | str]) -> Tensor:
    """Image files, or texts and files of them, as `Trained.scores` takes inputs for a rule: (n, ...).

    Raises:
        SettingError: the client's model does not take such inputs.
        DataError: an input cannot be read; it names the first.
    """
    _refuse_unfit(trained, sources)
    return torch.stack([_read(trained, rule, source) for source in sources])


def _read(trained: Trained, rule: str, source: Input) -> Tensor:
    # a text encoder has its own tokens
    tokens = trained.judge.tokens if rule == RULE and trained.judge and trained.judge.tokens else trained.tokens
    if tokens and not isinstance(source, BytesIO):
        return _tokens(tokens, source)
    return _image(trained.transform, source)


def reads_images(trained: Trained) -> bool:
    """Whether the model reads images from files."""
    transform = trained.transform
    return isinstance(transform, InputTransform) and transform.pixels and transform.shape[0] in (1, 3)


def _refuse_unfit(trained: Trained, sources: Sequence[Input]) -> None:
    """Refuse inputs that the client's model does not take."""
    shape = trained.transform.shape
    rows = f"rows of {shape[0]} numbers" if len(shape) == 1 else f"numbers of shape {tuple(shape)}"
    if trained.tokens is None and not reads_images(trained):
        raise SettingError(
            f"this client's model takes no images but {rows}: give it one table (.csv, .parquet) or one .npz "
            "file, like its training data."
        )
    if trained.tokens is None and any(isinstance(source, str) for source in sources):
        raise SettingError(f"this client's model {trained.model!r} reads images; give it files instead of --text.")
    if not sources:
        raise SettingError("there is nothing to classify; name at least one file.")


def _answers_of(trained: Trained, rule: str, sources: Sequence[Input]) -> Iterator[Answer]:
    read: list[Tensor | str] = []
    for source in sources:
        try:
            read.append(_read(trained, rule, source))
        except DataError as error:
            read.append(str(error))
    inputs = [item for item in read if isinstance(item, Tensor)]
    answers = iter(judged(trained, rule, torch.stack(inputs)) if inputs else [])
    for source, item in zip(sources, read, strict=True):
        name = str(source)
        yield Answer(name, item) if isinstance(item, str) else replace(next(answers), source=name)


def judged(trained: Trained, rule: str, inputs: Tensor) -> list[Answer]:
    """One answer, without a source, per input; inputs (n, ...) are as stored."""
    scores = trained.scores(rule, inputs).double().cpu()
    best_scores, labels = scores.max(dim=1)
    confidences: list[float | None] = [None] * len(scores)
    if rule in WITH_PROBABILITIES:
        confidences = list(softmax(scores, dim=1).amax(dim=1).tolist())
    answers = []
    for label, score, confidence in zip(labels.tolist(), best_scores.tolist(), confidences, strict=True):
        answers.append(Answer("", label=label, score=score, confidence=confidence))
    return answers


def _image(transform: Transform, source: Input) -> Tensor:
    """An image file as the training images are stored: (C, H, W) uint8 in their full scale.

    Raises:
        DataError: it cannot be read, or has more than 8 bits per channel.
    """
    assert isinstance(transform, InputTransform)
    channels, height, width = transform.shape
    name = "the input" if isinstance(source, BytesIO) else str(source)
    try:
        with Image.open(source) as image:
            depth = too_deep(image)
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except Exception as error:
        # a broken image raises exceptions of any kind
        raise DataError(f"{name} is no readable image ({type(error).__name__}: {error}).") from error
    if depth:
        raise DataError(f"{name} has pixels of mode {depth}, but images must have 8 bits a channel: convert it first.")
    pixels = resized(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1), height, width)
    return torch.from_numpy(np.rint(pixels * (transform.scale / PIXEL)).astype(np.uint8))


def _tokens(tokens: Tokens, source: Path | str) -> Tensor:
    """A text, or a file's content, as ids (L,).

    Raises:
        DataError: the file is not UTF-8, or there is no text.
    """
    if isinstance(source, Path) and source.suffix in (".json", ".jsonl"):
        raise DataError(f"{source} is not a text: JSON lines are no longer read; write CSV or parquet.")
    try:
        text = source.read_text("utf-8") if isinstance(source, Path) else source
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source} is no readable text ({error}): write it in UTF-8.") from None
    if not text.strip():
        raise DataError(f"{source if isinstance(source, Path) else 'the input'} has no text: give it one.")
    return tokens([text])[0]


def _load_newest(store: Store, state: ClientState, device: torch.device) -> int:
    """Load the newest generation into a state; returns its round."""
    generations = store.generations()
    if not generations:
        raise StoreError(
            f"{store.folder} describes a client but holds no state (round-*.safetensors) of it; restore it from a "
            "copy, or start a new run."
        )
    store.load_into(state, generations[0], device)
    return generations[0]


def _description(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise StoreError(f"there is no folder {folder}; a client's is PROTOSPHERE_HOME/clients/<run>/<partition>.")
    if not (folder / "client.json").exists():
        clients = sorted(
            (path.parent.name for path in folder.glob("*/client.json")), key=lambda name: (len(name), name)
        )
        if clients:
            some = ", ".join(clients[:10]) + (f" and {len(clients) - 10} more" if len(clients) > 10 else "")
            raise StoreError(f"{folder} is the folder of a run; name that of one of its clients in it: {some}.")
        raise StoreError(
            f"{folder} is not a client's folder, since it holds no client.json; a client's is "
            "PROTOSPHERE_HOME/clients/<run>/<partition>."
        )
    about = Store(folder).description()
    if about.get("format") != FORMAT:
        raise StoreError(
            f"{folder / 'client.json'} has format {about.get('format', 0)!r}, and this version of protosphere reads "
            f"format {FORMAT}; use the version that trained the client, or train it again."
        )
    wrong = [name for name, kind in PARTS.items() if not isinstance(about.get(name), kind)]
    if wrong:
        raise StoreError(f"{folder / 'client.json'} lacks {', '.join(wrong)}; restore it from a copy.")
    return about


def _transform(folder: Path, stored: Mapping[str, Any]) -> Transform:
    try:
        if "tokenizer" in stored:
            return TokenTransform(stored["tokenizer"], (int(stored["shape"][0]),))
        return InputTransform.from_dict(dict(stored))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StoreError(
            f"{folder / 'client.json'} does not say what the model's inputs are ({type(error).__name__}: {error}); "
            "restore it from a copy."
        ) from None


def _device(name: str) -> torch.device:
    try:
        device_name(name)
    except ValueError as error:
        raise SettingError(f'the device is "{name}"; it {error}.') from None
    return device_of(name, "the device is")
