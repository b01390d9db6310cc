"""The methods by name, with what helps a reader to choose: the source of the tables in README and docs/methods.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One method.

    Attributes:
        family: one of FAMILIES.
        source: the paper.
        up, down: what clients upload, and what they receive.
        cost: the cost beyond training the client's own model; "" if negligible.
        place: its location, `module:NAME`; "" for METHOD in the module of the method's name.
    """

    family: str
    source: str
    up: str
    down: str
    cost: str = ""
    place: str = ""


# the families
PROTOTYPES = "prototypes"
MIXTURES = "mixtures"
STATISTICS = "statistics in a public encoder's space"
WEIGHTS = "weights of one architecture, or of groups"
HEAD = "weights of the head"
BOTH = "weights and prototypes"
COMPANION = "a second model that all clients share"
OUTPUTS = "outputs"
BASELINE = "baselines"
# family -> what is exchanged
FAMILIES = {
    PROTOTYPES: "one vector per class (`fedgh` returns a classifier)",
    MIXTURES: "Gaussians per class",
    STATISTICS: "class means and covariances or mixtures, once",
    WEIGHTS: "all weights, or some of them",
    HEAD: "the last layers; `fedgen` also a generator of features",
    BOTH: "both",
    COMPANION: "its weights",
    OUTPUTS: "mean outputs per class",
    BASELINE: "nothing",
}

METHODS = {
    "protosphere": Entry(
        STATISTICS,
        "ours: [results](results.md)",
        up="class means and the covariance within classes",
        down="the aggregated means and covariance",
        cost="client: encoder",
    ),
    "fedproto": Entry(
        PROTOTYPES, "Tan et al., AAAI 2022", up="prototypes (class counts for `weighted`)", down="mean prototypes"
    ),
    "protonorm": Entry(
        PROTOTYPES,
        "Lee, Shin, Choi, 2025: [ProtoNorm](https://arxiv.org/abs/2507.04310)",
        up="prototypes",
        down="aligned unit prototypes",
        cost="server: alignment",
    ),
    "fedtgp": Entry(
        PROTOTYPES,
        "Zhang et al., AAAI 2024",
        up="prototypes",
        down="prototypes trained to lie apart",
        cost="server: training",
    ),
    "fedorgp": Entry(
        PROTOTYPES,
        "Guo et al., 2025: [FedORGP](https://arxiv.org/abs/2502.16119)",
        up="prototypes",
        down="prototypes trained to be orthogonal",
        cost="server: training",
    ),
    "tinyproto-fp": Entry(
        PROTOTYPES,
        "Lee, Choi, 2025: [TinyProto](https://arxiv.org/abs/2507.04327), on FedProto",
        up="prototypes times class counts",
        down="their mean",
        place="tinyproto:FP",
    ),
    "tinyproto-ft": Entry(
        PROTOTYPES,
        "Lee, Choi, 2025: TinyProto, on FedTGP",
        up="prototypes times class counts",
        down="prototypes trained to lie apart",
        cost="server: training",
        place="tinyproto:FT",
    ),
    "fedpagr": Entry(
        PROTOTYPES,
        "Prasad, Khan, ACL 2026 workshop: [FedPAGR](https://aclanthology.org/2026.acl-srw.37/)",
        up="unit prototypes of features after a projection head",
        down="prototypes refined to agree and to lie apart",
        cost="server: refinement",
    ),
    "fedproc": Entry(
        PROTOTYPES, "Mu et al., FGCS 2023", up="prototypes of features after a projection head", down="mean prototypes"
    ),
    "fedcgs": Entry(
        STATISTICS,
        "Guan et al., 2025: FedCGS",
        up="class means, class counts and the second moment",
        down="the Gaussian discriminant computed from them",
        cost="client: encoder",
    ),
    "fedncm": Entry(
        STATISTICS,
        "Legate et al., NeurIPS 2023: [FedNCM](https://arxiv.org/abs/2306.03937)",
        up="class means and class counts",
        down="the nearest class mean, as a linear classifier",
        cost="client: encoder",
    ),
    "fed3r": Entry(
        STATISTICS,
        "Fanì et al., ICML 2024: [Fed3R](https://arxiv.org/abs/2406.01116); He et al., CVPR 2025: [AFL](https://arxiv.org/abs/2405.16240)",
        up="Σ zzᵀ over its samples and Σ z by class",
        down="the ridge regression on all samples",
        cost="client: encoder",
    ),
    "fedcof": Entry(
        STATISTICS,
        "Goswami et al., NeurIPS 2025: [FedCOF](https://arxiv.org/abs/2412.14326)",
        up="class means and class counts",
        down="a ridge classifier, with covariances estimated from the scatter of clients' means",
        cost="client: encoder",
    ),
    "fedpft": Entry(
        STATISTICS,
        "Beitollahi et al., 2024: [FedPFT](https://arxiv.org/abs/2402.01862)",
        up="Gaussian mixtures of the classes, and class counts",
        down="a linear classifier, trained on samples of the mixtures",
        cost="client: encoder; server: training",
    ),
    "gfpl": Entry(
        MIXTURES,
        "Lu et al., 2026: [GFPL](https://arxiv.org/abs/2602.21873)",
        up="Gaussian mixtures of the classes, every tenth round",
        down="fused mixtures, the round after",
        cost="client: mixtures",
    ),
    "pfpl": Entry(
        PROTOTYPES,
        "Zeng et al., 2025: [PFPL](https://arxiv.org/abs/2510.03726)",
        up="prototypes",
        down="its personal prototypes: a share α of its own, the rest from similar clients",
        cost="server: pairs of clients",
    ),
    "local": Entry(BASELINE, "none", up="nothing", down="nothing"),
    "frame": Entry(BASELINE, "none: ProtoNorm with targets from the seed", up="nothing", down="nothing"),
    "fedavg": Entry(WEIGHTS, "McMahan et al., AISTATS 2017", up="its weights", down="its group's mean"),
    "lg-fedavg": Entry(
        HEAD, "Liang et al., 2020", up="its classifier's weights", down="their mean over all architectures"
    ),
    "fedper": Entry(
        WEIGHTS, "Arivazhagan et al., 2019", up="weights of all but its last layers", down="its group's mean"
    ),
    "fedprox": Entry(WEIGHTS, "Li et al., MLSys 2020", up="its weights", down="its group's mean"),
    "fedrep": Entry(
        WEIGHTS,
        "Collins et al., ICML 2021",
        up="weights of all but its last layers",
        down="its group's mean",
        cost="client: epochs for the head",
    ),
    "fedbn": Entry(WEIGHTS, "Li et al., ICLR 2021", up="its weights except batch norms", down="its group's mean"),
    "fednh": Entry(
        BOTH,
        "Dai et al., AAAI 2023",
        up="extractor, logits' scale, prototypes",
        down="their means, and unit prototypes as the classifier; one architecture",
    ),
    "feduv": Entry(WEIGHTS, "Son et al., CVPR 2024", up="its weights", down="its group's mean"),
    "fedfa": Entry(
        BOTH,
        "Zhou et al., 2023",
        up="its weights, prototypes",
        down="mean weights, and anchors updated by the prototypes; one architecture",
    ),
    "fesem": Entry(
        WEIGHTS,
        "Xie et al., 2020",
        up="its weights",
        down="mean weights of the cluster that it joined; one architecture",
        cost="server: clusters",
    ),
    "ditto": Entry(
        WEIGHTS,
        "Li et al., ICML 2021",
        up="weights of a second model of its architecture",
        down="its group's mean",
        cost="client: two models",
    ),
    "apfl": Entry(
        WEIGHTS,
        "Deng et al., 2020",
        up="weights of a second model of its architecture",
        down="its group's mean",
        cost="client: two models",
    ),
    "fedrod": Entry(
        WEIGHTS,
        "Chen, Chao, ICLR 2022",
        up="its weights except its personal head",
        down="its group's mean",
        cost="client: two heads",
    ),
    "feddistill": Entry(
        OUTPUTS,
        "Jeong et al., 2018",
        up="mean outputs of its model for its classes",
        down="the mean of the other clients'",
    ),
    "fml": Entry(
        COMPANION,
        "Shen et al., 2020",
        up="weights of a companion model, which teaches the client's own model and learns from it",
        down="their mean over all architectures",
        cost="client: two models",
    ),
    "fedkd": Entry(
        COMPANION,
        "Wu et al., 2022",
        up="low-rank changes of a companion model's weights (at first all weights)",
        down="their mean",
        cost="client: two models",
    ),
    "fedgen": Entry(
        HEAD,
        "Zhu et al., ICML 2021",
        up="its classifier's weights (all weights for `all`)",
        down="their mean over all architectures, and a generator of features",
        cost="server: training",
    ),
    "fedpa": Entry(
        BOTH,
        "Jiang et al., 2024",
        up="its weights and prototypes",
        down="their means, and a generator like FedGen's; one architecture",
        cost="server: training",
    ),
    "fedgh": Entry(
        PROTOTYPES,
        "Yi et al., ACM MM 2023",
        up="prototypes",
        down="a classifier, trained on all prototypes, for all architectures",
        cost="server: training",
    ),
    "fedmrl": Entry(
        COMPANION,
        "Yi et al., 2024",
        up="weights of a companion model, whose features join its own",
        down="their mean over all architectures",
        cost="client: two models",
    ),
    "fraug": Entry(
        WEIGHTS,
        "Chen et al., ICCV 2023",
        up="weights of its model and of a feature generator, except the generator's personal part",
        down="its group's mean",
        cost="client: generator",
    ),
}


def location(name: str) -> tuple[str, str]:
    """The module of a method, and the name of its row there."""
    module, _, attribute = (METHODS[name].place or name.replace("-", "_")).partition(":")
    return f"protosphere.strategies.{module}", attribute or "METHOD"
