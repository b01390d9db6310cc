"""The run's settings, with types and checks. Both ends read them here and nowhere else."""

import difflib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from protosphere.core import plugins
from protosphere.core.errors import DataError, SettingError
from protosphere.core.paths import is_path, listed

# Strict types: a bool is no int and 1 is no bool, but an int may stand for a float. Unknown names are refused.
STRICT = ConfigDict(
    strict=True,
    extra="forbid",
    allow_inf_nan=False,
    alias_generator=lambda field: field.replace("_", "-"),
)


Partition = Literal["iid", "dirichlet", "pathological", "way-shot", "mixed", "table", "column", "sites"]


def _not_empty(value: str) -> str:
    if not value.strip():
        raise ValueError("should not be empty")
    return value


def device_name(value: str) -> str:
    """A device's name. Raises ValueError if it is none."""
    if not re.fullmatch(r"auto|cpu|(cuda|mps|xpu)(:(0|[1-9][0-9]?))?", value):
        raise ValueError("should be 'auto', 'cpu', 'cuda', 'mps', 'xpu' or, with a number, 'cuda:<number>'")
    return value


def _tracking(value: object) -> object:
    """MLflow's location. The server's process has another working directory, and settings are stored in results."""
    if isinstance(value, str) and re.search("@|password=|passwd=|pwd=", value, re.IGNORECASE):
        raise ValueError(
            "should hold no password and no @; MLflow takes them from MLFLOW_TRACKING_USERNAME and _PASSWORD"
        )
    is_place = isinstance(value, str) and re.match(r"/|databricks$|[a-z][a-z0-9+.-]+:", value)
    if not isinstance(value, bool) and not is_place:
        raise ValueError("should be true, false, or a tracking URI such as 'http://host:5000'")
    return value


Scalar = bool | int | float | str
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
# torch and Flower count in machine integers, which a typing error must not overflow
Count = Annotated[int, Field(ge=0, lt=2**31)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**31)]
AtLeastTwo = Annotated[int, Field(ge=2, lt=2**31)]
Share = Annotated[float, Field(ge=0, lt=1)]
NotEmpty = Annotated[str, AfterValidator(_not_empty)]

# short names of public encoders -> the value of `encoder`
ENCODERS = {
    "dinov2-small": "hf:facebook/dinov2-small",
    "clip-vit-b32": "hf:openai/clip-vit-base-patch32",
    "minilm": "hf:sentence-transformers/all-MiniLM-L6-v2",
}


def full_encoder_name(name: str) -> str:
    """The full name for a short name in `ENCODERS`; any other name unchanged."""
    return ENCODERS.get(name, name)


RULES = ("local-prototypes", "global-prototypes", "classifier", "discriminant")
RECEIVED = "received"  # the rule of methods that share weights: the classifier as just received


class Settings(BaseModel):
    """The settings that all methods share; a field's name has `_` for `-`. pyproject.toml holds the same defaults."""

    model_config = ConfigDict(**STRICT, frozen=True, use_attribute_docstrings=True)

    strategy: str = "protosphere"
    """the method: a [name](methods.md), or [your own](adding-a-method.md) as `./file.py` or `package.module:NAME`"""
    own_settings: str = ""
    """internal: settings of your own method, as Flower passes them; do not set it"""
    dataset: NotEmpty = "digits"
    """a name, a hub id or a path; several, separated by commas, or `<folder>/*`, are [domains](data.md#domains);
    several tables: one client each"""
    classes: Literal["same", "union"] = "same"
    """classes of domains: the same names everywhere, or the union of all"""
    image_size: Annotated[int, Field(ge=0, le=4096)] = 0
    """image side in pixels; 0: unchanged, or the largest among domains"""
    models: NotEmpty = "tiny"
    """architectures, assigned to clients in turn: names, families or `./file.py:callable`, separated by commas. The
    default depends on the data. A site's own `model` takes precedence"""
    rounds: AtLeastOne = 20
    """T, number of rounds"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of all random draws"""

    clients: Count = 0
    """number of clients; 0: 10 or what the data imply; in a deployment, what most sites give as `--of`"""
    min_clients: Count = 0
    """deployment: start with this many clients; others [join later](deployment.md#sites-that-come-and-go); 0: wait
    for all"""
    forget_after: Count = 0
    """with `min-clients`: rounds of absence after which a client leaves; 0: never"""
    partition: Partition = "dirichlet"
    """how samples are [divided](data.md#partitions); `way-shot` and `mixed` give a client few samples of few classes"""
    partition_table: str = ""
    """`table`: a CSV file of sample counts, one row per client, one column per class"""
    partition_column: str = ""
    """a table's column or an array whose values are the clients; implies `column`"""
    alpha: Positive = 0.1
    """Dirichlet concentration; small values mean strong label skew"""
    self_balancing: bool = False
    """`dirichlet`: clients above an even share get no samples of later classes"""
    classes_per_client: AtLeastOne = 2
    """`pathological`: classes per client, in uneven parts"""
    ways: AtLeastTwo = 3
    """`way-shot`, `mixed`: w̄, mean number of classes per client"""
    ways_spread: Count = 1
    """ŵ: the number of classes is uniform in w̄ ± ŵ, at least 2"""
    shots: Count = 100
    """s̄, mean number of samples per class and client, including validation (and `pooled` test); `mixed`: 0 for all"""
    shots_spread: Count = 1
    """ŝ: the number of samples is uniform in s̄ ± ŝ, at least 1, one draw per client"""
    min_samples: AtLeastOne = 10
    """`iid`, `dirichlet`, `pathological`: minimum number of samples per client"""
    max_samples: Count = 0
    """use only the first N samples; 0: all"""
    split: Literal["pooled", "official"] = "pooled"
    """test samples: a part of each client's, or the official test set (required by `way-shot`)"""
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """share of a client's samples used for testing"""
    validation_share: Share = 0.1
    """share of a client's samples used for validation; 0: no round is selected"""
    text_column: str = ""
    """column of the texts; sites name [their own columns](deployment.md#step-by-step)"""
    label_column: str = ""
    """column of the classes"""
    group_column: str = ""
    """column of groups, such as patients, that no split divides"""
    max_tokens: AtLeastOne = 256
    """texts are truncated after this many tokens"""
    augment: Literal["none", "flip", "crop", "flip-crop"] = "none"
    """augmentation of training images ([data](data.md#transforms))"""
    spiral_noise: NotNegative = 0.2
    """standard deviation of the spiral's angles in radians; the paper prints 1"""
    spiral_points: AtLeastTwo = 1000
    """number of points of the spiral; paper: 5000"""

    local_epochs: AtLeastOne = 5
    """E, passes over a client's samples per round"""
    batch_size: AtLeastTwo = 32
    """samples per batch"""
    learning_rate: Positive = 0.01
    """learning rate of SGD"""
    momentum: Share = 0.9
    """momentum of SGD"""
    weight_decay: NotNegative = 0.0
    """weight decay of SGD"""
    optimizer_state: Literal["fresh", "persistent"] = "fresh"
    """whether momentum is kept across rounds"""
    shared_init: bool = True
    """clients with the same architecture start from the same weights"""
    feature_dim: AtLeastTwo = 64
    """d, dimension of features and prototypes"""
    encoder: Annotated[str, AfterValidator(full_encoder_name)] = ""
    """a [public encoder](models.md#public-encoders): `handcrafted` (the default of `protosphere`),
    `efficientnet-lite0`, `hf:…`, your own, or `random` for trials"""
    encoder_radius: NotNegative = 0.0
    """R: z = u / max(R, ‖u‖) instead of unit vectors; not with `privacy`, `fedcgs`, `fedcof`"""
    feature_activation: Literal["linear", "relu"] = "linear"
    """activation of the features; ReLU cannot reach negative targets"""
    prototype_weight: NotNegative = 1.0
    """λ, weight of the pull towards prototypes"""
    prototype_loss: Literal["mse", "l2", "l2-squared"] = "mse"
    """mean of (z − t)² over dimensions; mean of ‖z − t‖; mean of ‖z − t‖²"""
    prototypes_from: Literal["model", "training"] = "model"
    """prototypes from the trained model, or from features during training (faster; no `discriminant`)"""

    share_buffers: Literal["average", "own"] = "average"
    """with shared weights: average batch norm statistics, or keep them local"""
    wire_dtype: Literal["float32", "float16"] = "float32"
    """format of exchanged values. `protosphere` always sends scatter and discriminant as `float16`. TinyProto can
    overflow it (65504)"""

    fraction_train: Annotated[float, Field(gt=0, le=1)] = 1.0
    """ρ, share of clients with training samples that train in a round"""
    evaluate_every: AtLeastOne = 1
    """rounds between evaluations"""
    evaluate_clients: Literal["all", "sampled"] = "all"
    """evaluate all clients, or those that train in the round"""
    inference: str = "auto"
    """[inference rule](concepts.md#inference-rules) of the headline; `auto`: the method's own"""
    ensemble_every: Count = 0
    """simulation: rounds between predictions of a shared test set; 0: never"""
    shared_test_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """share of the samples set aside for `ensemble-every`"""
    disclose_class_counts: bool = False
    """allow methods that need class counts to send them"""
    confusion: Literal["auto", "always", "never"] = "auto"
    """send test samples per class in the last evaluation; `auto`: if the run made the partition and the method hides
    no class counts; never with `privacy`"""
    roc_auc: bool = False
    """measure each client's area under the ROC curve; not with `privacy`"""
    stop_patience: Count = 0
    """stop after this many evaluations without a better validation accuracy; 0: never"""

    privacy: Literal["none", "release"] = "none"
    """`release`: a client sends only one noisy release about its training samples"""
    privacy_epsilon: Positive = 3.0
    """ε of the release, for adding or removing one unit"""
    privacy_delta: Annotated[float, Field(gt=0, le=1e-3)] = 1e-5
    """δ of the release"""
    privacy_unit: Literal["row", "group"] = "row"
    """unit of protection: one sample, or all samples of a `group-column` value"""
    privacy_scale: Positive = 10.0
    """length of released unit prototypes"""
    privacy_measure: bool = False
    """for public data: send metrics in the clear, outside the guarantee"""

    start_timeout: Positive = 300.0
    """seconds to wait for all clients at the start"""
    round_timeout: Positive = 600.0
    """deployment: seconds to wait for a round's replies"""
    min_replies: Count = 0
    """deployment: valid replies that close a round; with fewer the round fails; 0: all"""
    max_failed_rounds: AtLeastOne = 3
    """the run ends after this many failed rounds in a row"""
    # its square must be a finite float32
    max_prototype_norm: Annotated[float, Field(gt=0, le=1e18)] = 1e4
    """uploads with a longer prototype are rejected (TinyProto: times the client's number of samples)"""
    max_weight_ratio: Annotated[float, Field(ge=1)] = 5.0
    """largest weight of a client in means and metrics, as a multiple of the clients' median number of samples; papers'
    presets: 1e9"""
    client_weights: Literal["samples", "equal"] = "samples"
    """weigh clients by their samples, or equally"""

    device: Annotated[str, AfterValidator(device_name)] = "auto"
    """where clients train: `auto`, `cpu`, `cuda`, `cuda:N`, `mps` or `xpu`. A site's own `device` takes precedence"""
    precision: Literal["float32", "bf16"] = "float32"
    """`bf16`: autocast on CUDA"""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads per client; changing it changes floating-point sums"""
    state_memory: Count = 1024
    """MB of client models in memory between rounds; the rest is on disk"""
    results_dir: str = ""
    """absolute path of the folder of runs; default: `results` in PROTOSPHERE_HOME"""
    resume: str = ""
    """continue a run: its folder, or `latest`. Only `rounds`, `stop-patience`, timeouts, `device`, `state-memory`,
    `results-dir`, `report`, `keep-prototypes`, `tensorboard`, `wandb` and `mlflow` may change"""
    report: bool = True
    """write a report at the end of the run"""
    keep_prototypes: Literal["some", "all"] = "some"
    """prototypes that a run stores: of its newest round (`some`) or of every round (4 bytes per value)"""

    tensorboard: bool = False
    """also send metrics to TensorBoard ([details](running.md#watch-a-run-elsewhere))"""
    wandb: bool = False
    """also send metrics to Weights & Biases, in the mode of `WANDB_MODE`"""
    mlflow: Annotated[bool | str, BeforeValidator(_tracking)] = False
    """also send metrics to MLflow: a tracking URI, or true for `MLFLOW_TRACKING_URI`"""

    def count_sampled(self, clients: int) -> int:
        """How many of this number of clients train per round, at least one."""
        return min(clients, max(int(self.fraction_train * clients + 0.5), 1))

    def measures_ensemble(self, round_number: int, is_last: bool) -> bool:
        """Whether the evaluation of this round includes the ensemble."""
        if not self.ensemble_every:
            return False
        return is_last or round_number % self.ensemble_every == 0

    @property
    def takes_newcomers(self) -> bool:
        """Whether clients may join and leave during the run."""
        return bool(self.min_clients)

    @model_validator(mode="after")
    def _agree(self) -> "Settings":
        """Refuse settings that contradict each other."""
        if self.test_share + self.validation_share >= 1:
            raise ValueError(
                f"`test-share` {self.test_share} and `validation-share` {self.validation_share} leave no training "
                "samples; their sum must be below 1"
            )
        if self.partition == "way-shot" and self.split != "official":
            raise ValueError(
                f'`partition` "way-shot" tests a client on all official test samples of its classes, but `split` is '
                f'"{self.split}"; set it to "official"'
            )
        for kind, source in (("table", self.partition_table), ("column", self.partition_column)):
            if (self.partition == kind) != bool(source):
                raise ValueError(
                    f'`partition` is "{self.partition}" and `partition-{kind}` {shown(source)}; "{kind}" divides by '
                    f"what `partition-{kind}` names, and nothing else reads it"
                )
        if 0 < self.clients < self.min_clients:
            raise ValueError(f"`min-clients` {self.min_clients} must not exceed `clients` {self.clients}")
        if self.forget_after and not self.min_clients:
            raise ValueError(
                f"`forget-after` is {self.forget_after}, but `min-clients` is 0, so clients stay; set it, too"
            )
        sampled = self.count_sampled(self.clients)
        if 0 < sampled < self.min_replies:
            raise ValueError(
                f"`min-replies` {self.min_replies} cannot be reached, since `fraction-train` {self.fraction_train} of "
                f"`clients` {self.clients} selects {sampled}; lower it, or raise `fraction-train`"
            )
        if self.ensemble_every % self.evaluate_every:
            raise ValueError(
                f"`ensemble-every` is {self.ensemble_every}, but clients are evaluated only every "
                f"{self.evaluate_every} rounds; make it a multiple of `evaluate-every`"
            )
        if self.stop_patience and not self.validation_share:
            raise ValueError(
                f"`stop-patience` is {self.stop_patience}, but `validation-share` is 0, so there is no sample to "
                "decide by; raise it, or set `stop-patience` to 0"
            )
        if self.privacy != "none":
            self._agree_on_privacy()
        elif self.privacy_measure:
            raise ValueError('`privacy-measure` is true, but `privacy` is "none", which withholds nothing; remove it')
        return self

    def _agree_on_privacy(self) -> None:
        """Refuse what would disclose more of the private samples than the release, or cannot be released."""
        if self.confusion == "always":
            raise ValueError('`confusion` is "always", which `privacy` forbids; set it to "auto" or "never"')
        # a release is made of unit vectors, and clients withhold everything that is measured on their samples
        for name in ("encoder-radius", "ensemble-every", "stop-patience", "roc-auc", "disclose-class-counts"):
            value = getattr(self, name.replace("-", "_"))
            if value:
                off = shown(type(value)())
                raise ValueError(f"`{name}` is {shown(value)}, which `privacy` forbids; set it to {off}")


# settings that decide when a run ends
ENDS = frozenset({"rounds", "stop-patience"})
# Settings that a resumed run may change: where, how long and how patiently it runs, never what it computes.
MAY_DIFFER_ON_RESUME = frozenset(
    ENDS
    | {"start-timeout", "round-timeout", "device", "state-memory", "results-dir", "resume"}
    | {"tensorboard", "wandb", "mlflow", "report", "keep-prototypes"}
)


def check(kind: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Build `kind` (a pydantic model or dataclass) from settings named with dashes.

    Raises SettingError with the first invalid setting, its value and what is allowed.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        raise SettingError(_sentence(error, prefix)) from None


def refuse_alone(settings: Mapping[str, Scalar]) -> None:
    """Refuse a shared setting that is invalid by itself. `read_settings`, which loads the method, checks the rest."""
    shared = {name.replace("_", "-") for name in Settings.model_fields}
    for name in settings:
        # without a similar name, it may be a method's setting without the method's prefix
        if "." not in name and name not in shared and (name in GONE or nearest(name, shared)):
            refuse_unknown([name], shared)
    try:
        Settings.model_validate({name: value for name, value in settings.items() if name in shared})
    except ValidationError as error:
        if error.errors()[0]["loc"]:
            raise SettingError(_sentence(error, "")) from None


def _sentence(error: ValidationError, prefix: str) -> str:
    first = error.errors()[0]
    reason = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not first["loc"]:
        return f"settings contradict each other: {reason}."
    name = prefix + str(first["loc"][0]).replace("_", "-")
    return f"setting `{name}` is {shown(first['input'])}, but it {reason}."


def shown(value: object) -> str:
    """A setting's value as a user would write it, on one line, shortened if it is very long."""
    text = f'"{repr(value)[1:-1]}"' if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 100 else f"{text[:100]}..."


# removed setting -> its replacement; a row may be removed in the next version
GONE = {
    "membership": "clients join and leave in deployments, with `min-clients` and `forget-after`",
    "meet-clients": "every client says at the start who it is",
    "min-train-clients": "a round selects the share `fraction-train` of the clients, at least one",
    "max-norm-ratio": "robust means bound long uploads, such as `fedproto.aggregation` and `weights.aggregation`",
    "protosphere.outliers": "use `protosphere.aggregation`",
    "fedcgs.outliers": "use `fedcgs.aggregation`",
    "shared-test-path": "a simulation sets `shared-test-share` of its samples aside; sites share no test set",
    "sparsity-dim": "use `tinyproto.sparsity-dim`; `tinyproto-fp` without scaling is FedProto with masks",
    "stop-min-delta": "`stop-patience` counts any rise of the mean",
    "server-threads": "the server computes with one thread",
    "feddistill.outputs": "FedDistill averages probabilities",
    "privacy-encoder": "use `encoder`",
    "normalise": "scale the data before the run",
    "query-timeout": "a node has 30 seconds to say who it is",
    "fedavg.weighting": '`client-weights` "equal" counts all clients alike',
    **dict.fromkeys(("fednh.weighting", "fedmrl.weighting"), "all clients count alike"),
    "fedpa.weighting": "all clients' prototypes count alike",
    "fedgen.weighting": "all clients that have a class count alike",
    "fednh.start": "prototypes start with orthonormal rows",
    "fedtgp.server-momentum": "the server's SGD has no momentum, as in the paper",
    "fedcgs.covariance": "the covariance is pooled within classes",
    "gfpl.weighting": "components have their weights in the client's mixture, and no class counts are uploaded",
    "fraug.variant": "the distances are those that the authors use for digits",
    "fedpft.covariance": "a component has one variance for all dimensions",
    "fed3r.normalise": "weights keep their lengths, as in AFL",
    **dict.fromkeys(("fed3r.random-features", "fed3r.sigma"), "Fed3R works on the encoder's features"),
}


def refuse_unknown(names: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse the first unknown name, with its replacement or the most similar name."""
    allowed = list(allowed)
    for name in names:
        if name in GONE and name not in allowed:
            raise SettingError(f"setting `{name}` was removed: {GONE[name]}; take it out.")
        if name not in allowed:
            raise SettingError(
                f"unknown setting `{shown(name)[1:-1]}`{nearest(name, allowed)}; `protosphere settings` lists them all."
            )


def nearest(name: str, allowed: Iterable[str]) -> str:
    """` (did you mean ...?)`, or "" if no known name is similar."""
    allowed = list(allowed)
    written = name.lower().replace("_", "-")
    close = [written] if written in allowed else difflib.get_close_matches(name, allowed, n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> str:
    """A sentence about a name that is not allowed, with the most similar one."""
    allowed = list(allowed)
    return f"unknown {kind} `{name}`{nearest(name, allowed)}; one of {', '.join(allowed)}."


def is_run_name(name: str) -> bool:
    """Whether `name` is a valid name of a run's folder on the server and on every client, and cannot lead elsewhere."""
    letters = name.translate(dict.fromkeys(map(ord, "-_.")))
    is_plain = letters != "" and all(map(_is_letter, letters)) and name == name.strip(".")
    return is_plain and len(name.encode()) <= 255


def plain_name(text: str, longest: int, sign: str = "_") -> str:
    """Text as a folder's name of at most `longest` UTF-8 bytes: everything but letters, digits and one sign becomes
    one `-`."""
    # a letter may have two encodings
    normal_form = unicodedata.normalize("NFC", text)
    letters = "".join(letter if letter == sign or _is_letter(letter) else "-" for letter in normal_form)
    return re.sub("-+", "-", letters).encode()[:longest].decode(errors="ignore").strip(f"-{sign}")


def _is_letter(character: str) -> bool:
    """A letter, a digit, or a combining mark of the letter before it, of any alphabet."""
    return unicodedata.category(character)[0] in "LMN"


def refuse_relative_paths(settings: Settings) -> None:
    """Refuse relative paths: Flower's processes would look them up in another folder than the user's."""
    try:
        data = [item for item in listed(settings.dataset) if is_path(item)]
    except DataError as error:
        raise SettingError(str(error)) from None
    paths = [("dataset", item) for item in data]
    paths += [("partition-table", settings.partition_table), ("results-dir", settings.results_dir)]
    names = [("models", name.strip()) for name in settings.models.split(",")]
    names += [("strategy", settings.strategy), ("dataset", settings.dataset), ("encoder", settings.encoder)]
    for setting, name in names:
        place = plugins.parted(name)[0] if plugins.is_file(name) else name.removeprefix("hf:")
        if plugins.is_file(name) or (name.startswith("hf:") and place.startswith(".")):
            paths.append((setting, place))
    for setting, path in paths:
        if path and not Path(os.path.expanduser(path)).is_absolute():
            raise SettingError(
                f"setting `{setting}` is {shown(path)}, a relative path, which Flower's processes would look up in "
                "another folder; give an absolute one, or use `protosphere run`, which resolves it."
            )
