"""The run's settings, typed and checked once. Both ends read them here and nowhere else."""

import difflib
import json
import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from protosphere.core import plugins
from protosphere.core.errors import DataError, SettingError
from protosphere.core.paths import is_path, listed

log = logging.getLogger("protosphere")

# A bool is no int and 1 is no bool; an int may stand for a float. Unknown names never pass.
STRICT = ConfigDict(
    strict=True,
    extra="forbid",
    allow_inf_nan=False,
    alias_generator=lambda field: field.replace("_", "-"),
)


DEALT_BY = ("iid", "dirichlet", "pathological", "way-shot", "mixed", "table", "column", "sites")


def _not_empty(value: str) -> str:
    if not value.strip():
        raise ValueError("should not be empty")
    return value


def device_name(value: str) -> str:
    """The name of a device, as it is.

    Raises:
        ValueError: it is none.
    """
    if not re.fullmatch(r"auto|cpu|(cuda|mps|xpu)(:(0|[1-9][0-9]?))?", value):
        raise ValueError("should be 'auto', 'cpu', 'cuda', 'mps', 'xpu' or, with a number, 'cuda:<number>'")
    return value


def _partition(value: str) -> str:
    """One that there is, or somebody's own callable."""
    if value not in DEALT_BY and not plugins.is_plugin(value):
        raise ValueError(
            f"should be {', '.join(map(repr, DEALT_BY))}, 'package.module:callable' or './file.py:callable'"
        )
    return value


# A place without a host: what else holds an @ may hold a password, and one with a slash ends the host's part early for
# every parser of addresses.
PASSWORD = re.compile(r"[?&;](password|passwd|pwd)=", re.IGNORECASE)
FILES = re.compile(r"(file:)?/(?!/)|(file|sqlite[a-z0-9+]*):///")


def _tracking(value: object) -> object:
    """Where MLflow is: the server's process has a working directory of its own, so nothing relative."""
    named = isinstance(value, str) and re.match(r"/|databricks$|[a-z][a-z0-9+.-]+:", value)
    if not isinstance(value, bool) and not named:
        raise ValueError("should be true, false, or a tracking URI such as 'http://host:5000'")
    if isinstance(value, str) and (("@" in value and not FILES.match(value)) or PASSWORD.search(value)):
        # settings stand in results and reports
        raise ValueError(
            "should hold no password; MLflow takes it from the variables MLFLOW_TRACKING_USERNAME, _PASSWORD"
        )
    return value


Scalar = bool | int | float | str
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
# torch and Flower count in machine integers: a slip of the finger must not overflow there
Count = Annotated[int, Field(ge=0, lt=2**31)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**31)]
AtLeastTwo = Annotated[int, Field(ge=2, lt=2**31)]
Share = Annotated[float, Field(ge=0, lt=1)]
NotEmpty = Annotated[str, AfterValidator(_not_empty)]

# short names of public encoders, and what `encoder` then is
ENCODERS = {
    "dinov2-small": "hf:facebook/dinov2-small",
    "clip-vit-b32": "hf:openai/clip-vit-base-patch32",
    "minilm": "hf:sentence-transformers/all-MiniLM-L6-v2",
}


def full_encoder_name(name: str) -> str:
    """What a short name of `ENCODERS` stands for; any other name as it is."""
    return ENCODERS.get(name, name)


RULES = ("local-prototypes", "global-prototypes", "classifier", "discriminant")
RECEIVED = "received"  # the rule of methods that share weights: the classifier of what has just come


class Settings(BaseModel):
    """What all methods share. Each field is the setting of the same name with `-` for `_`.

    pyproject.toml holds the same defaults for Flower; a test compares the two.
    """

    model_config = ConfigDict(**STRICT, frozen=True)

    strategy: str = "protosphere"
    own_settings: str = ""
    dataset: NotEmpty = "digits"
    classes: Literal["same", "union"] = "same"
    image_size: Annotated[int, Field(ge=0, le=4096)] = 0
    models: NotEmpty = "tiny"
    rounds: AtLeastOne = 20
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    clients: Count = 0
    min_clients: Count = 0
    forget_after: Count = 0
    partition: Annotated[str, AfterValidator(_partition)] = "dirichlet"
    partition_table: str = ""
    partition_column: str = ""
    alpha: Positive = 0.1
    self_balancing: bool = False
    classes_per_client: AtLeastOne = 2
    ways: AtLeastTwo = 3
    ways_spread: Count = 1
    shots: Count = 100
    shots_spread: Count = 1
    min_samples: AtLeastOne = 10
    max_samples: Count = 0
    split: Literal["pooled", "official"] = "pooled"
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    validation_share: Share = 0.1
    text_column: str = ""
    label_column: str = ""
    group_column: str = ""
    max_tokens: AtLeastOne = 256
    normalise: bool = False
    augment: Literal["none", "flip", "crop", "flip-crop"] = "none"
    spiral_noise: NotNegative = 0.2
    spiral_points: AtLeastOne = 1000

    local_epochs: AtLeastOne = 5
    batch_size: AtLeastTwo = 32
    learning_rate: Positive = 0.01
    momentum: Share = 0.9
    weight_decay: NotNegative = 0.0
    optimizer_state: Literal["fresh", "persistent"] = "fresh"
    shared_init: bool = True
    feature_dim: AtLeastTwo = 64
    encoder: Annotated[str, AfterValidator(full_encoder_name)] = ""
    encoder_radius: NotNegative = 0.0
    feature_activation: Literal["linear", "relu"] = "linear"
    prototype_weight: NotNegative = 1.0
    prototype_loss: Literal["mse", "l2", "l2-squared"] = "mse"
    prototypes_from: Literal["model", "training"] = "model"

    share_buffers: Literal["average", "own"] = "average"
    wire_dtype: Literal["float32", "float16"] = "float32"

    fraction_train: Annotated[float, Field(gt=0, le=1)] = 1.0
    evaluate_every: AtLeastOne = 1
    evaluate_clients: Literal["all", "sampled"] = "all"
    inference: str = "auto"
    ensemble_every: Count = 0
    shared_test_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    disclose_class_counts: bool = False
    confusion: Literal["auto", "always", "never"] = "auto"
    roc_auc: bool = False
    stop_patience: Count = 0

    privacy: Literal["none", "release"] = "none"
    privacy_epsilon: Positive = 3.0
    privacy_delta: Annotated[float, Field(gt=0, le=1e-3)] = 1e-5
    privacy_unit: Literal["row", "group"] = "row"
    privacy_scale: Positive = 10.0
    privacy_measure: bool = False

    start_timeout: Positive = 300.0
    query_timeout: Positive = 30.0
    round_timeout: Positive = 600.0
    min_replies: Count = 0
    max_failed_rounds: AtLeastOne = 3
    # its square must be a float32
    max_prototype_norm: Annotated[float, Field(gt=0, le=1e18)] = 1e4
    max_weight_ratio: Annotated[float, Field(ge=1)] = 5.0
    client_weights: Literal["samples", "equal"] = "samples"

    device: Annotated[str, AfterValidator(device_name)] = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    state_memory: Count = 1024
    results_dir: str = ""
    resume: str = ""
    report: bool = True
    keep_prototypes: Literal["some", "all"] = "some"

    tensorboard: bool = False
    wandb: bool = False
    mlflow: Annotated[bool | str, BeforeValidator(_tracking)] = False

    def measures_ensemble(self, round_number: int, is_last: bool) -> bool:
        """Whether clients answer for the ensemble in the evaluation of this round."""
        if not self.ensemble_every:
            return False
        return is_last or round_number % self.ensemble_every == 0

    @property
    def takes_newcomers(self) -> bool:
        """Whether clients may come and go while the run goes on."""
        return bool(self.min_clients)

    @model_validator(mode="after")
    def _agree(self) -> "Settings":
        if self.test_share + self.validation_share >= 1:
            raise ValueError(
                f"`test-share` {self.test_share} and `validation-share` {self.validation_share} leave no "
                "training samples; their sum must be below 1"
            )
        if self.partition == "way-shot" and self.split != "official":
            raise ValueError(
                f'`partition` "way-shot" tests a client on all official test samples of its classes, but `split` is '
                f'"{self.split}"; set it to "official"'
            )
        if (self.partition == "table") != bool(self.partition_table):
            raise ValueError(
                f'`partition` is "{self.partition}" and `partition-table` {shown(self.partition_table)}; '
                '"table" divides by the CSV file that `partition-table` names, and nothing else reads one'
            )
        if (self.partition == "column") != bool(self.partition_column):
            raise ValueError(
                f'`partition` is "{self.partition}" and `partition-column` {shown(self.partition_column)}; '
                '"column" divides by the column that `partition-column` names, and nothing else reads one'
            )
        if 0 < self.clients < self.min_clients:
            raise ValueError(f"`min-clients` {self.min_clients} must not exceed `clients` {self.clients}")
        if self.forget_after and not self.min_clients:
            raise ValueError(
                f"`forget-after` is {self.forget_after}, but `min-clients` is 0: the clients of the start stay to the "
                "end; set `min-clients`, too"
            )
        if 0 < self.clients < self.min_replies:
            raise ValueError(f"`min-replies` {self.min_replies} must not exceed `clients` {self.clients}")
        sampled = max(int(self.fraction_train * self.clients + 0.5), 1)
        if self.clients > 0 and sampled < self.min_replies:
            raise ValueError(
                f"`min-replies` {self.min_replies} can never come, since `fraction-train` {self.fraction_train} of "
                f"`clients` {self.clients} selects {sampled}; lower it, or raise `fraction-train`"
            )
        if self.ensemble_every % self.evaluate_every:
            raise ValueError(
                f"`ensemble-every` is {self.ensemble_every}, but clients are evaluated in every {self.evaluate_every}. "
                "round, and answer for the ensemble with that; make it a multiple of `evaluate-every`"
            )
        if self.precision == "bf16" and not self.device.startswith(("auto", "cuda")):
            raise ValueError(f'`precision` "bf16" is autocast on CUDA; with `device` "{self.device}" use "float32"')
        if self.stop_patience and not self.validation_share:
            raise ValueError(
                f"`stop-patience` is {self.stop_patience}, but `validation-share` is 0, which leaves no sample to "
                "decide by; raise it, or set `stop-patience` to 0"
            )
        if self.privacy != "none":
            self._agree_on_privacy()
        elif self.privacy_measure:
            raise ValueError('`privacy-measure` is true, but `privacy` is "none", which hides no figure; take it out')
        return self

    def _agree_on_privacy(self) -> None:
        if self.encoder_radius:
            raise ValueError(
                f"`encoder-radius` is {self.encoder_radius}: a release is made of unit vectors; under `privacy` it "
                "must be 0"
            )
        if self.ensemble_every:
            raise ValueError(
                f"`ensemble-every` is {self.ensemble_every}: answers are made of private models; under `privacy` it "
                "must be 0"
            )
        if self.stop_patience:
            raise ValueError(
                f"`stop-patience` is {self.stop_patience}: validation accuracy is of private samples, and under "
                "`privacy` clients keep it; set it to 0"
            )
        if self.confusion == "always":
            raise ValueError(
                '`confusion` is "always": it discloses how many test samples of each class a client has, which '
                '`privacy` forbids; set it to "auto" or "never"'
            )
        if self.roc_auc:
            raise ValueError(
                "`roc-auc` is true: it is of private samples, and under `privacy` clients keep it; set it to false"
            )
        if self.disclose_class_counts:
            raise ValueError(
                "`disclose-class-counts` is true: under `privacy` the only counts that leave are those of a noisy "
                "release; set it to false"
            )


# When a run ends.
ENDS = frozenset({"rounds", "stop-patience"})
# What a resumed run may change: where, how long and how patiently it runs, never what it computes.
MAY_DIFFER_ON_RESUME = frozenset(
    ENDS
    | {"start-timeout", "query-timeout", "round-timeout", "device", "state-memory", "results-dir", "resume"}
    | {"tensorboard", "wandb", "mlflow", "report", "keep-prototypes"}
)


def check(kind: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Build `kind` (a pydantic model or dataclass) from settings named with dashes.

    Raises:
        SettingError: one sentence that names the first wrong setting, its value and what is allowed.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        raise SettingError(_sentence(error, prefix)) from None


def _sentence(error: ValidationError, prefix: str) -> str:
    first = error.errors()[0]
    if not first["loc"]:
        return f"settings contradict each other: {first['msg'].removeprefix('Value error, ')}."
    name = prefix + str(first["loc"][0]).replace("_", "-")
    reason = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"setting `{name}` is {shown(first['input'])}, but it {reason}."


def shown(value: object) -> str:
    """A setting's value as a person would write it, on one line, cut where it would fill the screen."""
    text = f'"{repr(value)[1:-1]}"' if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 100 else f"{text[:100]}..."


# what papers and other programs call settings of ours
ELSEWHERE = {
    **dict.fromkeys(("lr", "eta", "learningrate", "client-lr", "local-lr"), "learning-rate"),
    **dict.fromkeys(("lambda", "lamda", "lam", "lamb", "lambda-p", "proto-weight"), "prototype-weight"),
    **dict.fromkeys(("epochs", "epoch", "num-epochs", "local-epoch", "local-ep", "local-steps"), "local-epochs"),
    **dict.fromkeys(("batch", "bs", "batchsize", "local-bs", "local-batch-size"), "batch-size"),
    **dict.fromkeys(("num-rounds", "n-rounds", "global-rounds", "num-server-rounds", "comm-rounds"), "rounds"),
    **dict.fromkeys(("num-clients", "n-clients", "num-users", "client"), "clients"),
    **dict.fromkeys(("dataset-name", "data", "data-set", "data-name", "data-path"), "dataset"),
    **dict.fromkeys(("model", "model-name", "net", "network", "architecture"), "models"),
    **dict.fromkeys(("method", "algorithm", "algo", "strategy-name"), "strategy"),
    **dict.fromkeys(("wd", "l2", "decay"), "weight-decay"),
    **dict.fromkeys(("fraction-fit", "join-ratio", "frac", "participation"), "fraction-train"),
    **dict.fromkeys(("dim", "d", "embedding-dim", "proto-dim"), "feature-dim"),
    **dict.fromkeys(("gpu", "cuda"), "device"),
    **dict.fromkeys(("random-seed", "random-state"), "seed"),
}


# a setting's name before -> its name now; what is given by the old one counts as if by the new
RENAMED = {"privacy-encoder": "encoder"}

GONE_SINCE = "0.1.0"
# name -> its default, as which the program goes on to work, and what is so now. A row may go with the next version.
GONE: dict[str, tuple[Scalar, str]] = {
    "membership": ("", "clients join and leave over a deployment alone, with `min-clients` and `forget-after`"),
    "meet-clients": ("all", "every client says at the start who it is"),
    "min-train-clients": (1, "a round selects the share `fraction-train` of the clients, one at least"),
    "max-norm-ratio": (20.0, "robust means hold long uploads, as `fedproto.aggregation` and `weights.aggregation` do"),
    **dict.fromkeys(
        ("protosphere.outliers", "fedcgs.outliers"),
        ("leave-out", "robust class means take its place, as `protosphere.aggregation` and `fedcgs.aggregation`"),
    ),
    "shared-test-path": ("", "a simulation sets `shared-test-share` of its samples aside; sites share no test set"),
    "sparsity-dim": (0, "`tinyproto.sparsity-dim` takes its place, and `tinyproto-fp` without scaling is FedProto so"),
    "stop-min-delta": (0.0, "any rise of the mean is one for `stop-patience`"),
    "server-threads": (1, "the server computes with one thread"),
    "feddistill.outputs": ("probabilities", "FedDistill averages probabilities"),
}
# (name, a value that it no longer takes) -> what is so now
GONE_VALUES: dict[tuple[str, Scalar], str] = {
    ("wire-dtype", "int8"): '"float16" is the smallest number format',
    ("wire-dtype", "bfloat16"): '"float16" has as many bytes',
    ("fedcgs.covariance", "identity"): 'FedNCM is a method of its own, `strategy = "fedncm"`',
}


def without_gone(run_config: Mapping[str, Scalar], is_finished: bool = False) -> dict[str, Scalar]:
    """The settings by their names of today, without those of `GONE`: at its default such a one changed nothing, and a
    notice says that it is ignored. A method of somebody's own may have one of its own by such a name.

    Args:
        is_finished: whether nothing is to run by them any more: then whatever value they had is left out, as is one of
            `GONE_VALUES`.

    Raises:
        SettingError: one has another value than its default, or one of `GONE_VALUES`, or a setting is given by both of
            its names.
    """
    run_config = _by_new_names(run_config)
    is_own_method = plugins.is_plugin(str(run_config.get("strategy", "")))
    gone_names = {name for name in GONE.keys() & run_config.keys() if "." not in name or not is_own_method}
    for (name, value), replacement in GONE_VALUES.items():
        if is_own_method or name not in run_config or run_config[name] != value:
            continue
        if not is_finished:
            raise SettingError(
                f"setting `{name}` is {shown(value)}, which is gone since version {GONE_SINCE}: {replacement}; choose "
                "that, or use the version that has it."
            )
        run_config = {other: run_config[other] for other in run_config if other != name}
    for name in sorted(gone_names):
        (default, replacement), value = GONE[name], run_config[name]
        if not is_finished and (isinstance(value, bool) or value != default):
            raise SettingError(
                f"setting `{name}` is {shown(value)}, but it is gone since version {GONE_SINCE}: {replacement}; take "
                "it out, or use the version that has it."
            )
        if not is_finished:
            _log_gone(name, replacement)
    return {name: value for name, value in run_config.items() if name not in gone_names}


def _by_new_names(run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The settings by their names of today; one that is empty by its old name was not given."""
    settings = dict(run_config)
    for old_name, name in RENAMED.items():
        value = settings.pop(old_name, "")
        if value in ("", settings.get(name)):
            continue
        if settings.get(name):
            raise SettingError(
                f"setting `{name}` is {shown(settings[name])}, but by its old name `{old_name}` it is {shown(value)}; "
                "take the old name out."
            )
        settings[name] = value
    return settings


@cache
def _log_gone(name: str, replacement: str) -> None:
    """Once a process."""
    log.warning("setting `%s` is gone since version %s and is ignored: %s", name, GONE_SINCE, replacement)


def refuse_unknown(names: Iterable[str], allowed: Iterable[str]) -> None:
    """Stop at the first name that is no setting, with the nearest one that is."""
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            raise SettingError(
                f"unknown setting `{shown(name)[1:-1]}`{nearest(name, allowed)}; `protosphere settings` lists them all."
            )


def nearest(name: str, allowed: Iterable[str]) -> str:
    """` (did you mean ...?)`, or nothing when no known name is close, or is what others call it by that name."""
    allowed = list(allowed)
    written = name.lower().replace("_", "-")
    usual = [candidate for candidate in (written, ELSEWHERE.get(written, "")) if candidate in allowed]
    close = usual or difflib.get_close_matches(name, allowed, n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


def is_run_name(name: str) -> bool:
    """Whether `name` can name a run's folder on the server and on every client, and lead nowhere else."""
    letters = name.translate(dict.fromkeys(map(ord, "-_.")))
    is_plain = letters != "" and all(map(_is_letter, letters)) and name == name.strip(".")
    return is_plain and len(name.encode()) <= 255


def plain_name(text: str, longest: int, sign: str = "_") -> str:
    """Words as a folder's name: letters and digits of any alphabet stay, and one sign; what is between is one `-`.

    Args:
        longest: bytes of the name in UTF-8, at most.
    """
    # one and the same letter can be written in two ways
    normal_form = unicodedata.normalize("NFC", text)
    letters = "".join(letter if letter == sign or _is_letter(letter) else "-" for letter in normal_form)
    return re.sub("-+", "-", letters).encode()[:longest].decode(errors="ignore").strip(f"-{sign}")


def _is_letter(character: str) -> bool:
    """A letter, a digit, or a sign that belongs to the letter before it, of any alphabet."""
    return unicodedata.category(character)[0] in "LMN"


def refuse_relative_paths(settings: Settings) -> None:
    """A relative path would be sought from the SuperLink's or a Ray worker's folder, not the user's."""
    encoders = [model.strip().removeprefix("hf:") for model in settings.models.split(",") if "hf:" in model]
    try:
        data = [item for item in listed(settings.dataset) if is_path(item)]
    except DataError as error:
        raise SettingError(str(error)) from None
    candidates = [
        ("models", next((place for place in encoders if place.startswith(".")), "")),
        *(("models", name.strip()) for name in settings.models.split(",") if plugins.is_file(name.strip())),
        ("partition", settings.partition if plugins.is_file(settings.partition) else ""),
        ("strategy", settings.strategy if plugins.is_file(settings.strategy) else ""),
        *(("dataset", item) for item in data),
        ("dataset", settings.dataset if plugins.is_file(settings.dataset) else ""),
        ("encoder", _encoder_place(settings.encoder)),
        ("partition-table", settings.partition_table),
        ("results-dir", settings.results_dir),
    ]
    for name, value in candidates:
        if value and not Path(os.path.expanduser(value)).is_absolute():
            raise SettingError(
                f"setting `{name}` is {shown(value)}, a relative path that Flower's processes would look up "
                "elsewhere; give an absolute one, or use `protosphere run`, which resolves it."
            )


def _encoder_place(name: str) -> str:
    """Where a public encoder's file or folder lies, "" where its name holds no path."""
    if plugins.is_file(name):
        return plugins.parted(name)[0]
    place = name.removeprefix("hf:")
    if place != name:
        return place if place.startswith(".") else ""
    return "" if plugins.is_plugin(name) else name.partition("@")[2]
