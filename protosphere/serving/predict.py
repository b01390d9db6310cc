"""Loads a trained client from its store, without its training data, and predicts new inputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protosphere.client_app.encoder import ENCODER
from protosphere.client_app.evaluate import ROWS_AT_ONCE, features_of, received_scores, rule_scores
from protosphere.client_app.store import FORMAT, Store, StoreError, lay_out, new_state
from protosphere.core.devices import device_of, exact_on
from protosphere.core.errors import DataError, SettingError
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import RECEIVED, device_name, full_encoder_name
from protosphere.data.client_data import InputTransform, Rows, TokenTransform, Transform
from protosphere.models.text import Tokens
from protosphere.serving.encoder_rule import EncoderRule, encoder_rule
from protosphere.strategies import read_settings, unpacked
from protosphere.strategies.companions import companion_of
from protosphere.strategies.contract import ClientState, Objective, SpaceObjective
from protosphere.strategies.encoder_space import directions
from protosphere.strategies.release import POOL, RULE
from protosphere.strategies.trust import COMPANION, refuse_untrusted

if TYPE_CHECKING:
    from protosphere.serving.inputs import Input

PARTS = {"partition": int, "model": str, "class_names": list, "input": dict, "rule": str, "settings": dict}
# the rules whose scores are log-probabilities, up to a constant per input
WITH_PROBABILITIES = ("classifier", "discriminant", RECEIVED, POOL)


@dataclass(frozen=True)
class Trained:
    """A client for predictions.

    Attributes:
        run, partition: the names of the folders of its store.
        rule: the client's own rule, from the run's settings; it may be unavailable.
        round: the round of its state.
        tokens: makes token ids of texts; None if the model does not take them.
        received: the client with the newest received weights, for the rule `received`; None without that rule.
        encoder_rule: None without the rule `encoder`.
    """

    run: str
    partition: int
    model: str
    class_names: tuple[str, ...]
    rule: str
    round: int
    objective: Objective
    state: ClientState
    transform: Transform
    device: torch.device
    tokens: Tokens | None = None
    received: ClientState | None = None
    encoder_rule: EncoderRule | None = None

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images from files."""
        transform = self.transform
        return isinstance(transform, InputTransform) and transform.pixels and transform.shape[0] in (1, 3)

    def rules(self) -> tuple[str, ...]:
        """The rules that this client can apply."""
        dim = self.objective.settings.feature_dim
        nothing = torch.zeros(0, dim, device=self.device)
        rules = [*rule_scores(self.objective, self.state, nothing)]
        if self.received is not None:
            rules += received_scores(self.objective, self.received, nothing)
        encoded, has_one_tokenizer = None, True
        if self.encoder_rule is not None:
            rules.append(RULE)
            encoded = self.encoder_rule.scores(torch.zeros(0, dim, dtype=torch.float64))
            # if its encoder and its model use different tokenizers, no input fits both
            has_one_tokenizer = self.encoder_rule.tokens in (None, self.tokens)
        if has_one_tokenizer and self.pooled(nothing, encoded) is not None:
            rules.append(POOL)
        return tuple(rules)

    def pooled(self, z: Tensor, encoded: Tensor | None) -> Tensor | None:
        """The rule `pool`, as in `SpaceObjective.pooled`; None if the method has none."""
        return self.objective.pooled(self.state, z, encoded) if isinstance(self.objective, SpaceObjective) else None

    def find_rule(self, name: str = "") -> str:
        """The rule of that name, or the client's own for "".

        Raises:
            SettingError: there is no such rule, or this client lacks what it needs.
        """
        rule, rules = name or self.rule, self.rules()
        if rule not in rules:
            raise SettingError(
                f"rule {rule!r} cannot be applied by client {self.partition} of run "
                f"{self.run}; it can apply {', '.join(rules)}: name one with --rule."
            )
        return rule

    def state_of(self, rule: str) -> tuple[ClientState, str]:
        """The state that a rule judges by, and the rule for it: `received` is the classifier of the received weights,
        `received-<rule>` the method's own rule with them."""
        name, _, base_rule = rule.partition("-")
        if name == RECEIVED and self.received is not None:
            return self.received, base_rule or "classifier"
        return self.state, rule

    @torch.no_grad()
    def scores(self, rule: str, inputs: Tensor) -> Tensor:
        """Scores of inputs (n, ...) as stored: (n, K), higher is better; -inf for a class unknown to the rule."""
        state, base_rule = self.state_of(rule)
        with limited_threads(self.objective.settings.threads):
            encoded = None
            if self.encoder_rule is not None and rule in (RULE, POOL):
                encoded = self._encoded_scores(self.encoder_rule, inputs)
            if rule == RULE and encoded is not None:
                return encoded
            rows = Rows(inputs.to(self.device), torch.zeros(len(inputs), dtype=torch.int64))
            z = features_of(self.objective, state, rows, self.transform)
            if rule == POOL:
                pooled = self.pooled(z, None if encoded is None else encoded.to(exact_on(self.device)))
                assert pooled is not None
                return pooled
            return rule_scores(self.objective, state, z)[base_rule]

    def _encoded_scores(self, rule: EncoderRule, inputs: Tensor) -> Tensor:
        prepared = inputs.cpu() if rule.tokens else self.transform.plain(inputs.cpu())
        scores = rule.scores(directions(rule.encoder()(prepared), self.objective.settings.encoder_radius))
        assert scores is not None
        return scores


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
    of_client = about.get(ENCODER) or {}
    encoder_name = full_encoder_name(encoder) or str(of_client.get("name", settings.get("encoder", "")))
    code = [("strategy", str(settings.get("strategy", ""))), ("model", about["model"])]
    refuse_untrusted(folder, code if encoder else [*code, ("encoder", encoder_name)], trust)
    run = read_settings(settings)
    names = tuple(about["class_names"])
    objective = run.method.objective(run.settings, run.options, len(names))
    # built next to the client's own model
    refuse_untrusted(folder, [(COMPANION, companion_of(objective))], trust)
    try:
        device_name(device)
    except ValueError as error:
        raise SettingError(f'the device is "{device}"; it {error}.') from None
    place, transform, store = device_of(device, "the device is"), _transform(folder, about["input"]), Store(folder)
    state = new_state(objective, about["model"], transform.shape, about["partition"], place)
    generations = store.generations()
    if not generations:
        raise StoreError(
            f"{folder} describes a client but holds no state (round-*.safetensors) of it; restore it from a copy, or "
            "start a new run."
        )
    store.load_into(state, generations[0], place)
    state.pool_weight, state.space = store.load_pool()
    received, state.constants = store.load_received()
    lay_out(objective, state, received, place)
    state.module.eval()
    fingerprint = str(of_client.get("fingerprint", ""))
    rule = encoder_rule(run, objective, store, transform.shape, received, state.space, encoder_name, fingerprint)
    home = folder.absolute()
    return Trained(
        run=home.parent.name,
        partition=about["partition"],
        model=about["model"],
        class_names=names,
        rule=about["rule"],
        round=generations[0],
        objective=objective,
        state=state,
        transform=transform,
        device=place,
        tokens=Tokens(about["model"], run.settings.max_tokens) if isinstance(transform, TokenTransform) else None,
        received=objective.evaluation_state(state, received) if RECEIVED in run.method.rules else None,
        encoder_rule=rule,
    )


def _description(folder: Path) -> dict[str, Any]:
    if not (folder / "client.json").is_file():
        clients = sorted((path.parent.name for path in folder.glob("*/client.json")), key=lambda name: name.zfill(9))
        such_as = f"; this is a run with the clients {', '.join(clients[:10])}" if clients else ""
        raise StoreError(
            f"there is no client in {folder}; a client's folder is PROTOSPHERE_HOME/clients/<run>/<partition>{such_as}."
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


@dataclass(frozen=True)
class Answer:
    """A client's answer for one input.

    Attributes:
        source: the input's name.
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


def predict(trained: Trained, rule: str, inputs: "Sequence[Input]") -> Iterator[Answer]:
    """One answer per input; an unreadable input gets an answer with its problem."""
    for start in range(0, len(inputs), ROWS_AT_ONCE):
        answers: list[Answer] = []
        tensors: list[Tensor] = []
        for item in inputs[start : start + ROWS_AT_ONCE]:
            problem = item.problem
            try:
                tensors += [] if problem else [item.read(trained, rule)]
            except DataError as error:
                problem = str(error)
            answers.append(Answer(item.name, problem, unknown=item.unknown))
        judged = _judge(trained, rule, torch.stack(tensors)) if tensors else iter(())
        for answer in answers:
            yield answer if answer.problem else replace(answer, **next(judged))


def _judge(trained: Trained, rule: str, inputs: Tensor) -> Iterator[dict[str, Any]]:
    """The label, score and confidence of each of the inputs (n, ...), which are as stored."""
    scores = trained.scores(rule, inputs).double().cpu()
    best_scores, labels = scores.max(dim=1)
    confidences: list[float | None] = [None] * len(scores)
    if rule in WITH_PROBABILITIES:
        confidences = list(scores.softmax(dim=1).amax(dim=1).tolist())
    for label, score, confidence in zip(labels.tolist(), best_scores.tolist(), confidences, strict=True):
        yield {"label": label, "score": score, "confidence": confidence}
