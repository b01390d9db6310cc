"""Reads and checks a run's method and settings. A method's module is imported on demand, because a deployment starts
one process per message."""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from protosphere.core import plugins
from protosphere.core.errors import ModelError, SettingError
from protosphere.core.settings import GONE, Scalar, Settings, check, nearest, refuse_unknown, shown
from protosphere.models.encoder import suggest_encoder
from protosphere.strategies.contract import OF_CLAIMS, Exchange, Method, MethodError, Options, Pulled, SpaceObjective
from protosphere.strategies.registry import METHODS as METHODS
from protosphere.strategies.registry import location
from protosphere.strategies.release import (
    OWN_POOL,
    OWN_RULE,
    RULE,
    check_public_encoder,
    refuse_unreleasable,
    under_release,
)
from protosphere.strategies.user_method import refuse_unread_members

if __name__ == "strategies":
    raise ImportError(
        "this is protosphere.strategies: import it by that name; a strategies/ of your own needs an __init__.py"
    )

DISCRIMINANT = "discriminant"
# The strategy of one method, as Flower defines strategies. server_app may import strategies, so it is loaded on demand.
FLOWER_STRATEGY = ("protosphere.server_app.method_strategy", "MethodStrategy")


def __getattr__(name: str) -> Any:
    """`protosphere.strategies.ProtoNorm`: the method `protonorm` as a `flwr.serverapp.strategy.Strategy`."""
    methods = {method.replace("-", ""): method for method in METHODS}
    method = methods.get(name.lower()) if name[:1].isupper() else None
    if method is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, base = FLOWER_STRATEGY
    return type(name, (getattr(import_module(module), base),), {"method_name": method, "__module__": __name__})


@dataclass(frozen=True)
class Run:
    """The checked settings of a run."""

    settings: Settings
    method: Method
    options: Options

    @cached_property
    def exchange(self) -> Exchange:
        """The parts of the method's messages, in the run's number format."""
        exchange = self.method.exchange(self.options)
        exchange = under_release(exchange) if self.private else exchange
        return exchange.in_format(self.settings.wire_dtype)

    @property
    def digest(self) -> str:
        """Digest of the settings that decide how both ends read a message."""
        settings = self.settings
        # A user's method may lie elsewhere at each site; it has a digest of its own.
        name = "" if plugins.is_plugin(settings.strategy) else settings.strategy
        values = (name, settings.feature_dim, settings.seed, settings.privacy, self.exchange)
        return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()

    @property
    def private(self) -> bool:
        """Whether clients send a noisy release and nothing else."""
        return self.settings.privacy == "release"

    @property
    def confusion(self) -> bool:
        """Whether the last evaluation asks for a confusion matrix. A site with its own private samples may not send
        one."""
        hidden = self.private or self.exchange.hides_counts
        return self.settings.confusion == "always" or (self.settings.confusion == "auto" and not hidden)

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """All inference rules that the clients report."""
        released = (RULE,) if self.private and self.exchange.down else ()
        controls = (OWN_RULE, OWN_POOL) if self.encodes else ()
        return tuple(dict.fromkeys((*self.method.rules, *released, *controls)))

    @property
    def encodes(self) -> bool:
        """Whether clients read their samples through a public encoder."""
        return bool(self.exchange.up) if self.private else bool(self.settings.encoder)

    @property
    def inference(self) -> str:
        """The run's main inference rule."""
        inference = self.settings.inference
        return self.method.inference if inference == "auto" else inference


def load_method(name: str) -> Method:
    """Load the method with this name.

    Raises:
        SettingError: the name is unknown; the message suggests the nearest one.
    """
    if plugins.is_plugin(name):
        try:
            plugin = plugins.load(name, "METHOD")
        except ModelError as error:
            raise SettingError(f"setting `strategy`: {error}") from None
        if not isinstance(plugin, Method):
            raise SettingError(
                f"setting `strategy` is {shown(name)}, which is a {type(plugin).__name__} and not a Method; "
                "docs/adding-a-method.md shows one."
            )
        try:
            refuse_unread_members(plugin)
        except MethodError as error:
            raise SettingError(f"setting `strategy` is {shown(name)}, but {error}") from None
        return _with_settings_of_halves(plugin)
    if name not in METHODS:
        raise SettingError(
            f"setting `strategy` is {shown(name)}{nearest(name, METHODS)}; one of {', '.join(METHODS)} is "
            "allowed, or a method of your own as ./file.py or package.module:NAME."
        )
    module, attribute = location(name)
    method: Method = getattr(import_module(module), attribute)
    return method


def _with_settings_of_halves(method: Method) -> Method:
    """Add the settings of built-in halves to a user's method that uses or subclasses them, because those halves read
    these settings. The method's own settings take precedence."""
    settings = dict(method.settings)
    for half in (*method.server.__mro__, *method.objective.__mro__):
        if not half.__module__.startswith(f"{__name__}."):
            continue
        for other in vars(sys.modules[half.__module__]).values():
            if not isinstance(other, Method) or half not in (other.server, other.objective):
                continue
            for prefix, kind in other.settings.items():
                if prefix not in settings and kind not in settings.values():
                    settings[prefix] = kind
    return method if settings.keys() == method.settings.keys() else replace(method, settings=settings)


def default_encoder(method: Method) -> str:
    """The public encoder of a method if the setting `encoder` names none; "" for none."""
    return method.objective.encoder if issubclass(method.objective, SpaceObjective) else ""


def read_settings(run_config: Mapping[str, Scalar]) -> Run:
    """Read a run's settings from Flower's flat run configuration; missing names take their defaults.

    Raises:
        SettingError: one sentence that names the setting, its value and what is allowed.
    """
    run_config = unpacked(run_config)
    shared = {name: value for name, value in run_config.items() if "." not in name}
    refuse_unknown(shared, _list_names(Settings))
    settings: Settings = check(Settings, shared)
    refuse_unknown([name for name in run_config if "." in name and name in GONE], ())
    method = load_method(settings.strategy)
    encoder = default_encoder(method)
    if encoder and settings.privacy == "none" and not settings.encoder:
        settings = settings.model_copy(update={"encoder": encoder})
    options = _read_options(method, run_config, settings.strategy)
    run = Run(settings, method, options)
    _refuse_rules(run)
    try:
        exchange = method.exchange(options)
    except MethodError as error:
        raise SettingError(f"setting `strategy` is {shown(settings.strategy)}, but {error}") from None
    if exchange.kinds() and settings.wire_dtype != "float32" and not _obeys_wire_dtype(exchange):
        # if it were ignored, the run's settings would mislead
        raise SettingError(
            f"setting `wire-dtype` is {shown(settings.wire_dtype)}, which is the format of prototype vectors and "
            f"weights, but `{settings.strategy}` sends {' and '.join(sorted(exchange.kinds()))}; remove it "
            '("float32").'
        )
    if run.private:
        refuse_unreleasable(settings, method, options)
        return run
    if issubclass(method.objective, SpaceObjective):
        check_public_encoder(
            settings,
            f"setting `encoder` is empty, but `{settings.strategy}` works in the space of a public encoder, "
            f"the same at all clients; name one: {suggest_encoder()}",
        )
    if exchange.counts and not settings.disclose_class_counts:
        raise SettingError(
            f"setting `disclose-class-counts` is false, but `{settings.strategy}` as set uploads class counts; allow "
            "it with true, or choose an aggregation without them."
        )
    return run


def _read_options(method: Method, run_config: Mapping[str, Scalar], strategy: str = "") -> Options:
    """A method's own settings.

    Args:
        strategy: the setting that names the method; "" if other names of its prefixes are to be refused in any case.
    """
    options: dict[type, Any] = {}
    for prefix, kind in method.settings.items():
        values = {name.removeprefix(f"{prefix}."): v for name, v in run_config.items() if name.startswith(f"{prefix}.")}
        unknown_names = set(values) - set(_list_names(kind))
        if unknown_names and plugins.is_plugin(strategy):
            # The user's copy of a built-in method may have other settings, and the user did not set the defaults of
            # ours.
            defaults = known_settings()
            values = {
                n: v for n, v in values.items() if n not in unknown_names or defaults.get(f"{prefix}.{n}", kind) != v
            }
        refuse_unknown((f"{prefix}.{name}" for name in values), (f"{prefix}.{name}" for name in _list_names(kind)))
        options[kind] = check(kind, values, f"{prefix}.")
    return Options(options)


def _refuse_rules(run: Run) -> None:
    """Refuse an inference rule that the method does not have, or whose features `prototypes-from` drops."""
    settings = run.settings
    by_discriminant = settings.inference == DISCRIMINANT
    if settings.prototypes_from == "training" and (run.method.uploads_features or by_discriminant):
        cause = "the rule `discriminant` needs" if by_discriminant else f"`{settings.strategy}` uploads"
        raise SettingError(
            f'setting `prototypes-from` is "training", but {cause} the trained model\'s features; remove it ("model").'
        )
    # the rules without an exchange are controls, and no client predicts by them
    rules = [rule for rule in run.rules if rule not in (OWN_RULE, OWN_POOL)]
    if settings.inference not in ("auto", *rules):
        raise SettingError(
            f"setting `inference` is {shown(settings.inference)}, but with `{settings.strategy}` it can be auto, "
            f"{' or '.join(rules)}."
        )


def _obeys_wire_dtype(exchange: Exchange) -> bool:
    """Whether some part of the messages is sent in the run's number format. Mixtures never are."""
    return bool(exchange.kinds() - {"mixtures"})


def refuse_foreign(run_config: Mapping[str, Scalar]) -> None:
    """Refuse a setting of a method other than the run's. Its default passes, because Flower always fills in defaults.

    This imports every method, so only the server and the command line call it.
    """
    run_config = unpacked(run_config)
    strategy = str(run_config.get("strategy", Settings().strategy))
    defaults = known_settings(strategy)
    settings_by_prefix = load_method(strategy).settings
    refuse_unknown(run_config, defaults)
    for name, value in run_config.items():
        prefix, _, short_name = name.rpartition(".")
        if short_name and prefix and prefix not in settings_by_prefix and value != defaults[name]:
            raise SettingError(
                f"setting `{name}` is {shown(value)}, but `{strategy}` does not read it; remove it (its default is "
                f"{shown(defaults[name])}), or choose the strategy that does."
            )


def as_of_today(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Complete settings that another version stored: new settings take their defaults. So do settings of other methods,
    which the run never read and whose defaults may have changed.

    It loads the method that the settings name. For a folder from somebody else, ask strategies/trust.py first.

    Raises:
        SettingError: the method cannot be loaded, or `own-settings` is invalid.
    """
    run_config = unpacked(run_config)
    strategy = str(run_config.get("strategy", Settings().strategy))
    method = load_method(strategy)
    values = {name: value for name, value in run_config.items() if _belongs_to(method, name)}
    return known_settings(strategy) | values


def packed(run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Prepare settings for Flower, which refuses names that our pyproject.toml lacks: the settings of a user's method
    travel in the setting `own-settings`."""
    if not plugins.is_plugin(str(run_config.get("strategy", ""))):
        return dict(run_config)
    defaults = known_settings()
    plugin_settings = {name: value for name, value in run_config.items() if name not in defaults}
    registered_settings = {name: value for name, value in run_config.items() if name in defaults}
    return registered_settings | ({"own-settings": json.dumps(plugin_settings)} if plugin_settings else {})


def unpacked(run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Inverse of `packed`.

    Raises:
        SettingError: `own-settings` is not a JSON object, or holds a name that is no setting of a method.
    """
    packed_text = run_config.get("own-settings", "")
    try:
        plugin_settings = json.loads(str(packed_text)) if packed_text else {}
        if not all(isinstance(value, str | int | float) for value in plugin_settings.values()):
            raise TypeError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise SettingError(
            f"setting `own-settings` is {shown(packed_text)}, but it should be empty: give the settings of your own "
            "method by their names."
        ) from None
    if undotted_names := [name for name in plugin_settings if "." not in name]:
        # An undotted name would replace a shared setting that has been checked, such as `strategy`, and nothing is
        # packed twice.
        raise SettingError(
            f"setting `own-settings` holds `{shown(undotted_names[0])[1:-1]}`, which is no setting of a method of your "
            "own; give it by its name."
        )
    return {**run_config, **plugin_settings, "own-settings": ""} if plugin_settings else dict(run_config)


def known_settings(strategy: object = "") -> dict[str, Any]:
    """Every setting of every method with its default, by full name.

    Args:
        strategy: a user's method, whose settings are included.
    """
    defaults = dict(_registered_defaults())
    if plugins.is_plugin(str(strategy)):
        defaults |= _defaults_of(load_method(str(strategy)))
    return defaults


@cache
def _registered_defaults() -> Mapping[str, Any]:
    """Defaults of the shared settings and of all registered methods."""
    shared = Settings()
    defaults = {name: getattr(shared, name.replace("-", "_")) for name in _list_names(Settings)}
    for method in map(load_method, METHODS):
        defaults |= _defaults_of(method)
    return defaults


def _defaults_of(method: Method) -> dict[str, Any]:
    """Defaults of a method's own settings."""
    defaults: dict[str, Any] = {}
    for prefix, kind in method.settings.items():
        default = kind()
        defaults |= {f"{prefix}.{name}": getattr(default, name.replace("-", "_")) for name in _list_names(kind)}
    return defaults


def settings_read(run_config: Mapping[str, Scalar]) -> set[str]:
    """The settings that a method reads: its own and the shared ones, except those that it ignores. For a user's method,
    all shared settings, because only its code could tell.

    Args:
        run_config: `strategy`, and the method's own settings, on which the answer may depend.

    Raises:
        SettingError: one of these cannot be used.
    """
    strategy = str(run_config["strategy"])
    method = load_method(strategy)
    names = {name for name in known_settings(strategy) if _belongs_to(method, name)}
    if plugins.is_plugin(strategy):
        return names
    options = _read_options(method, run_config)
    exchange = method.exchange(options)
    if not issubclass(method.objective, Pulled):
        names -= {"prototype-weight", "prototype-loss"}
    if not exchange.kinds():
        names -= {"max-prototype-norm"}
    if not _obeys_wire_dtype(exchange):
        names -= {"wire-dtype"}
    names -= method.ignored_settings(options) - (OF_CLAIMS if exchange.counts else frozenset())
    if not exchange.weights:
        names -= {"share-buffers"}
    return names


def settings_by_keyword(strategy: str, keywords: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Settings by name from keyword arguments: `_` stands for `-`, and the method's own settings need no prefix.

    Raises:
        SettingError: a name fits settings of several prefixes of the method.
    """
    method = load_method(strategy)
    settings: dict[str, Scalar] = {}
    for keyword, value in keywords.items():
        name = keyword if "." in keyword else keyword.replace("_", "-")
        own_names = [f"{prefix}.{name}" for prefix, kind in method.settings.items() if name in _list_names(kind)]
        if not own_names and f"{strategy}.{name}" in GONE:
            # refused below by its full name, with what takes its place
            own_names = [f"{strategy}.{name}"]
        if len(own_names) > 1:
            raise SettingError(f"`{keyword}` could be {' or '.join(own_names)}; give it by that name, as **{{...}}.")
        settings[own_names[0] if own_names else name] = value
    return settings


def _belongs_to(method: Method, name: str) -> bool:
    """Whether a setting is shared by all methods or belongs to this one."""
    prefix, dot, _ = name.rpartition(".")
    return not dot or prefix in method.settings


def _list_names(kind: Any) -> list[str]:
    """Setting names (with dashes) of a pydantic model or dataclass."""
    names = kind.model_fields if kind is Settings else [entry.name for entry in fields(kind)]
    return [name.replace("_", "-") for name in names]
