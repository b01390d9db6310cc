"""The methods by name, with what helps a reader to choose: the source of the tables in README and docs/methods.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One method.

    Attributes:
        module: its location, `module` or `module:NAME`; METHOD if no name is given.
        family: one of FAMILIES.
        source: the paper.
        up, down: what clients upload, and what they receive.
        cost: the cost beyond training the client's own model; "" if negligible.
    """

    module: str
    family: str
    source: str
    up: str
    down: str
    cost: str = ""


# family -> what is exchanged
FAMILIES = {
    "prototypes": "one vector per class (`fedgh` returns a classifier)",
    "mixtures": "Gaussians per class",
    "statistics in a public encoder's space": "class means and covariances or mixtures, once",
    "weights of one architecture, or of groups": "all weights, or some of them",
    "weights of the head": "the last layers; `fedgen` also a generator of features",
    "weights and prototypes": "both",
    "a second model that all clients share": "its weights",
    "outputs": "mean outputs per class",
    "baselines": "nothing",
}

METHODS = {
    "protosphere": Entry(
        module="protosphere.strategies.protosphere",
        family="statistics in a public encoder's space",
        source="ours: [results](results.md)",
        up="class means and the covariance within classes",
        down="the aggregated means and covariance",
        cost="client: encoder",
    ),
    "fedproto": Entry(
        module="protosphere.strategies.fedproto",
        family="prototypes",
        source="Tan et al., AAAI 2022",
        up="prototypes (class counts for `weighted`)",
        down="mean prototypes",
    ),
    "protonorm": Entry(
        module="protosphere.strategies.protonorm",
        family="prototypes",
        source="Lee, Shin, Choi, 2025: [ProtoNorm](https://arxiv.org/abs/2507.04310)",
        up="prototypes",
        down="aligned unit prototypes",
        cost="server: alignment",
    ),
    "fedtgp": Entry(
        module="protosphere.strategies.fedtgp",
        family="prototypes",
        source="Zhang et al., AAAI 2024",
        up="prototypes",
        down="prototypes trained to lie apart",
        cost="server: training",
    ),
    "fedorgp": Entry(
        module="protosphere.strategies.fedorgp",
        family="prototypes",
        source="Guo et al., 2025: [FedORGP](https://arxiv.org/abs/2502.16119)",
        up="prototypes",
        down="prototypes trained to be orthogonal",
        cost="server: training",
    ),
    "tinyproto-fp": Entry(
        module="protosphere.strategies.tinyproto:FP",
        family="prototypes",
        source="Lee, Choi, 2025: [TinyProto](https://arxiv.org/abs/2507.04327), on FedProto",
        up="prototypes times class counts",
        down="their mean",
    ),
    "tinyproto-ft": Entry(
        module="protosphere.strategies.tinyproto:FT",
        family="prototypes",
        source="Lee, Choi, 2025: TinyProto, on FedTGP",
        up="prototypes times class counts",
        down="prototypes trained to lie apart",
        cost="server: training",
    ),
    "fedpagr": Entry(
        module="protosphere.strategies.fedpagr",
        family="prototypes",
        source="Prasad, Khan, ACL 2026 workshop: [FedPAGR](https://aclanthology.org/2026.acl-srw.37/)",
        up="unit prototypes of features after a projection head",
        down="prototypes refined to agree and to lie apart",
        cost="server: refinement",
    ),
    "fedproc": Entry(
        module="protosphere.strategies.fedproc",
        family="prototypes",
        source="Mu et al., FGCS 2023",
        up="prototypes of features after a projection head",
        down="mean prototypes",
    ),
    "fedcgs": Entry(
        module="protosphere.strategies.fedcgs",
        family="statistics in a public encoder's space",
        source="Guan et al., 2025: FedCGS",
        up="class means, class counts and the second moment",
        down="the Gaussian discriminant computed from them",
        cost="client: encoder",
    ),
    "fedncm": Entry(
        module="protosphere.strategies.fedncm",
        family="statistics in a public encoder's space",
        source="Legate et al., NeurIPS 2023: [FedNCM](https://arxiv.org/abs/2306.03937)",
        up="class means and class counts",
        down="the nearest class mean, as a linear classifier",
        cost="client: encoder",
    ),
    "fed3r": Entry(
        module="protosphere.strategies.fed3r",
        family="statistics in a public encoder's space",
        source="Fanì et al., ICML 2024: [Fed3R](https://arxiv.org/abs/2406.01116); He et al., CVPR 2025: [AFL](https://arxiv.org/abs/2405.16240)",
        up="Σ zzᵀ over its samples and Σ z by class, also of random features",
        down="the ridge regression on all samples",
        cost="client: encoder",
    ),
    "fedcof": Entry(
        module="protosphere.strategies.fedcof",
        family="statistics in a public encoder's space",
        source="Goswami et al., NeurIPS 2025: [FedCOF](https://arxiv.org/abs/2412.14326)",
        up="class means and class counts",
        down="a ridge classifier, with covariances estimated from the scatter of clients' means",
        cost="client: encoder",
    ),
    "fedpft": Entry(
        module="protosphere.strategies.fedpft",
        family="statistics in a public encoder's space",
        source="Beitollahi et al., 2024: [FedPFT](https://arxiv.org/abs/2402.01862)",
        up="Gaussian mixtures of the classes, and class counts",
        down="a linear classifier, trained on samples of the mixtures",
        cost="client: encoder; server: training",
    ),
    "gfpl": Entry(
        module="protosphere.strategies.gfpl",
        family="mixtures",
        source="Lu et al., 2026: [GFPL](https://arxiv.org/abs/2602.21873)",
        up="Gaussian mixtures of the classes, every tenth round (class counts for `samples`)",
        down="fused mixtures, the round after",
        cost="client: mixtures",
    ),
    "pfpl": Entry(
        module="protosphere.strategies.pfpl",
        family="prototypes",
        source="Zeng et al., 2025: [PFPL](https://arxiv.org/abs/2510.03726)",
        up="prototypes",
        down="its personal prototypes: a share α of its own, the rest from similar clients",
        cost="server: pairs of clients",
    ),
    "local": Entry(
        module="protosphere.strategies.local",
        family="baselines",
        source="none",
        up="nothing",
        down="nothing",
    ),
    "frame": Entry(
        module="protosphere.strategies.frame",
        family="baselines",
        source="none: ProtoNorm with targets from the seed",
        up="nothing",
        down="nothing",
    ),
    "fedavg": Entry(
        module="protosphere.strategies.fedavg",
        family="weights of one architecture, or of groups",
        source="McMahan et al., AISTATS 2017",
        up="its weights",
        down="its group's mean",
    ),
    "lg-fedavg": Entry(
        module="protosphere.strategies.lg_fedavg",
        family="weights of the head",
        source="Liang et al., 2020",
        up="its classifier's weights",
        down="their mean over all architectures",
    ),
    "fedper": Entry(
        module="protosphere.strategies.fedper",
        family="weights of one architecture, or of groups",
        source="Arivazhagan et al., 2019",
        up="weights of all but its last layers",
        down="its group's mean",
    ),
    "fedprox": Entry(
        module="protosphere.strategies.fedprox",
        family="weights of one architecture, or of groups",
        source="Li et al., MLSys 2020",
        up="its weights",
        down="its group's mean",
    ),
    "fedrep": Entry(
        module="protosphere.strategies.fedrep",
        family="weights of one architecture, or of groups",
        source="Collins et al., ICML 2021",
        up="weights of all but its last layers",
        down="its group's mean",
        cost="client: epochs for the head",
    ),
    "fedbn": Entry(
        module="protosphere.strategies.fedbn",
        family="weights of one architecture, or of groups",
        source="Li et al., ICLR 2021",
        up="its weights except batch norms",
        down="its group's mean",
    ),
    "fednh": Entry(
        module="protosphere.strategies.fednh",
        family="weights and prototypes",
        source="Dai et al., AAAI 2023",
        up="extractor, logits' scale, prototypes (class counts for `samples`)",
        down="their means, and unit prototypes as the classifier; one architecture",
    ),
    "feduv": Entry(
        module="protosphere.strategies.feduv",
        family="weights of one architecture, or of groups",
        source="Son et al., CVPR 2024",
        up="its weights",
        down="its group's mean",
    ),
    "fedfa": Entry(
        module="protosphere.strategies.fedfa",
        family="weights and prototypes",
        source="Zhou et al., 2023",
        up="its weights, prototypes",
        down="mean weights, and anchors updated by the prototypes; one architecture",
    ),
    "fesem": Entry(
        module="protosphere.strategies.fesem",
        family="weights of one architecture, or of groups",
        source="Xie et al., 2020",
        up="its weights",
        down="mean weights of the cluster that it joined; one architecture",
        cost="server: clusters",
    ),
    "ditto": Entry(
        module="protosphere.strategies.ditto",
        family="weights of one architecture, or of groups",
        source="Li et al., ICML 2021",
        up="weights of a second model of its architecture",
        down="its group's mean",
        cost="client: two models",
    ),
    "apfl": Entry(
        module="protosphere.strategies.apfl",
        family="weights of one architecture, or of groups",
        source="Deng et al., 2020",
        up="weights of a second model of its architecture",
        down="its group's mean",
        cost="client: two models",
    ),
    "fedrod": Entry(
        module="protosphere.strategies.fedrod",
        family="weights of one architecture, or of groups",
        source="Chen, Chao, ICLR 2022",
        up="its weights except its personal head",
        down="its group's mean",
        cost="client: two heads",
    ),
    "feddistill": Entry(
        module="protosphere.strategies.feddistill",
        family="outputs",
        source="Jeong et al., 2018",
        up="mean outputs of its model for its classes",
        down="the mean of the other clients'",
    ),
    "fml": Entry(
        module="protosphere.strategies.fml",
        family="a second model that all clients share",
        source="Shen et al., 2020",
        up="weights of a companion model, which teaches the client's own model and learns from it",
        down="their mean over all architectures",
        cost="client: two models",
    ),
    "fedkd": Entry(
        module="protosphere.strategies.fedkd",
        family="a second model that all clients share",
        source="Wu et al., 2022",
        up="low-rank changes of a companion model's weights (at first all weights)",
        down="their mean",
        cost="client: two models",
    ),
    "fedgen": Entry(
        module="protosphere.strategies.fedgen",
        family="weights of the head",
        source="Zhu et al., ICML 2021",
        up="its classifier's weights (all weights for `all`, class counts for `samples`)",
        down="their mean over all architectures, and a generator of features",
        cost="server: training",
    ),
    "fedpa": Entry(
        module="protosphere.strategies.fedpa",
        family="weights and prototypes",
        source="Jiang et al., 2024",
        up="its weights and prototypes (class counts for `samples`)",
        down="their means, and a generator like FedGen's; one architecture",
        cost="server: training",
    ),
    "fedgh": Entry(
        module="protosphere.strategies.fedgh",
        family="prototypes",
        source="Yi et al., ACM MM 2023",
        up="prototypes",
        down="a classifier, trained on all prototypes, for all architectures",
        cost="server: training",
    ),
    "fedmrl": Entry(
        module="protosphere.strategies.fedmrl",
        family="a second model that all clients share",
        source="Yi et al., 2024",
        up="weights of a companion model, whose features join its own",
        down="their mean over all architectures",
        cost="client: two models",
    ),
    "fraug": Entry(
        module="protosphere.strategies.fraug",
        family="weights of one architecture, or of groups",
        source="Chen et al., ICCV 2023",
        up="weights of its model and of a feature generator, except the generator's personal part",
        down="its group's mean",
        cost="client: generator",
    ),
}
