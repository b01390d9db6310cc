"""The methods by name, with what a reader wants to know before choosing: the tables of README and docs/methods.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One method.

    Attributes:
        module: where it is, `module` or `module:NAME`; METHOD unless a name follows.
        family: one of FAMILIES.
        source: the paper.
        up, down: what clients upload, and what they get.
        cost: what it takes beyond a client's training of its own model; "" for nothing to speak of.
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
    "statistics in a public encoder's space": "once: class means and how features vary around them, or mixtures",
    "weights of one architecture, or of groups": "all weights, or some of them",
    "weights of the head": "the last layers; `fedgen` also a generator of features",
    "weights and prototypes": "both",
    "a second model that all clients share": "its weights",
    "outputs": "mean outputs per class",
    "baselines": "nothing: `local` trains alone; `frame` takes its targets from the seed",
}

METHODS = {
    "protosphere": Entry(
        module="protosphere.strategies.protosphere",
        family="statistics in a public encoder's space",
        source="ours: [what it is worth](results.md)",
        up="once, class means and the covariance within classes, in a public encoder's space (`encoder`)",
        down="once, the aggregated class means and covariance",
        cost="one pass of the encoder",
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
        source="Lee, Shin, Choi: [ProtoNorm](https://arxiv.org/abs/2507.04310)",
        up="prototypes",
        down="aligned unit prototypes",
        cost="the server aligns the prototypes",
    ),
    "fedtgp": Entry(
        module="protosphere.strategies.fedtgp",
        family="prototypes",
        source="Zhang et al., AAAI 2024",
        up="prototypes",
        down="prototypes that the server trains to lie apart",
        cost="the server trains an embedding per class",
    ),
    "fedorgp": Entry(
        module="protosphere.strategies.fedorgp",
        family="prototypes",
        source="Guo et al., 2025: [FedORGP](https://arxiv.org/abs/2502.16119)",
        up="prototypes",
        down="prototypes that the server trains to be orthogonal",
        cost="the server trains an embedding per class",
    ),
    "tinyproto-fp": Entry(
        module="protosphere.strategies.tinyproto:FP",
        family="prototypes",
        source="Lee, Choi: TinyProto, on FedProto",
        up="prototypes times class counts",
        down="their mean",
    ),
    "tinyproto-ft": Entry(
        module="protosphere.strategies.tinyproto:FT",
        family="prototypes",
        source="Lee, Choi: TinyProto, on FedTGP",
        up="prototypes times class counts",
        down="prototypes that the server trains to lie apart",
        cost="the server trains an embedding per class",
    ),
    "fedpagr": Entry(
        module="protosphere.strategies.fedpagr",
        family="prototypes",
        source="Prasad, Khan: FedPAGR",
        up="unit prototypes of features after a projection head",
        down="prototypes refined to agree and to lie apart",
        cost="the server refines the prototypes",
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
        up="once, class means, class counts and the second moment, in the space of a public encoder (`encoder`)",
        down="the Gaussian discriminant computed from them",
        cost="one pass of the encoder",
    ),
    "fedncm": Entry(
        module="protosphere.strategies.fedncm",
        family="statistics in a public encoder's space",
        source="Legate et al., NeurIPS 2023: [FedNCM](https://arxiv.org/abs/2306.03937)",
        up="once, class means and class counts, likewise",
        down="the nearest class mean, as a linear classifier",
        cost="one pass of the encoder",
    ),
    "fed3r": Entry(
        module="protosphere.strategies.fed3r",
        family="statistics in a public encoder's space",
        source="Fanì et al., ICML 2024: [Fed3R](https://arxiv.org/abs/2406.01116); He et al., CVPR 2025: [AFL](https://arxiv.org/abs/2405.16240)",
        up="once, Σ zzᵀ over its samples and Σ z by class, likewise or of random features",
        down="the ridge regression on all samples",
        cost="one pass of the encoder",
    ),
    "fedcof": Entry(
        module="protosphere.strategies.fedcof",
        family="statistics in a public encoder's space",
        source="Goswami et al., NeurIPS 2025: [FedCOF](https://arxiv.org/abs/2412.14326)",
        up="once, class means and class counts, likewise",
        down="a ridge classifier; its covariances are estimated from the scatter of clients' means",
        cost="one pass of the encoder",
    ),
    "fedpft": Entry(
        module="protosphere.strategies.fedpft",
        family="statistics in a public encoder's space",
        source="Beitollahi et al., 2024: [FedPFT](https://arxiv.org/abs/2402.01862)",
        up="once, Gaussian mixtures of the classes and class counts, likewise",
        down="a linear classifier that the server trains on samples of the mixtures",
        cost="one pass of the encoder; the server trains a classifier",
    ),
    "gfpl": Entry(
        module="protosphere.strategies.gfpl",
        family="mixtures",
        source="Lu et al.: GFPL",
        up="Gaussian mixtures of the classes, every tenth round (class counts for `samples`)",
        down="fused mixtures, the round after",
        cost="clients fit mixtures in every tenth round",
    ),
    "pfpl": Entry(
        module="protosphere.strategies.pfpl",
        family="prototypes",
        source="Zeng et al.: PFPL",
        up="prototypes",
        down="its personal prototypes: a share α of its own, the rest from similar clients",
        cost="the server compares all clients in pairs",
    ),
    "local": Entry(
        module="protosphere.strategies.local",
        family="baselines",
        source="none: training alone",
        up="nothing",
        down="nothing",
    ),
    "frame": Entry(
        module="protosphere.strategies.frame",
        family="baselines",
        source="none: ProtoNorm's control, with targets from the seed; GFPL's §4.1 has a similar one",
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
        cost="further epochs for the head",
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
        cost="the server clusters the clients",
    ),
    "ditto": Entry(
        module="protosphere.strategies.ditto",
        family="weights of one architecture, or of groups",
        source="Li et al., ICML 2021",
        up="weights of a second model of its architecture",
        down="its group's mean",
        cost="two models per client",
    ),
    "apfl": Entry(
        module="protosphere.strategies.apfl",
        family="weights of one architecture, or of groups",
        source="Deng et al., 2020",
        up="weights of a second model of its architecture",
        down="its group's mean",
        cost="two models per client",
    ),
    "fedrod": Entry(
        module="protosphere.strategies.fedrod",
        family="weights of one architecture, or of groups",
        source="Chen, Chao, ICLR 2022",
        up="its weights except its personal head",
        down="its group's mean",
        cost="two heads per client",
    ),
    "feddistill": Entry(
        module="protosphere.strategies.feddistill",
        family="outputs",
        source="Jeong et al., 2018",
        up="mean outputs of its model for its classes",
        down="for each client the mean of the others'",
    ),
    "fml": Entry(
        module="protosphere.strategies.fml",
        family="a second model that all clients share",
        source="Shen et al., 2020",
        up="weights of a companion model; it and the client's own teach each other",
        down="their mean over all architectures",
        cost="a second model per client",
    ),
    "fedkd": Entry(
        module="protosphere.strategies.fedkd",
        family="a second model that all clients share",
        source="Wu et al., 2022",
        up="low-rank changes of a companion model's weights (at first all weights)",
        down="their mean",
        cost="a second model per client",
    ),
    "fedgen": Entry(
        module="protosphere.strategies.fedgen",
        family="weights of the head",
        source="Zhu et al., ICML 2021",
        up="its classifier's weights (all for `all`); class counts for `samples`",
        down="their mean over all architectures, and a generator of features that the server trains",
        cost="the server trains a generator",
    ),
    "fedpa": Entry(
        module="protosphere.strategies.fedpa",
        family="weights and prototypes",
        source="Jiang et al., 2024",
        up="its weights and prototypes (class counts for `samples`)",
        down="their means, and a generator like FedGen's; one architecture",
        cost="the server trains a generator",
    ),
    "fedgh": Entry(
        module="protosphere.strategies.fedgh",
        family="prototypes",
        source="Yi et al., ACM MM 2023",
        up="prototypes",
        down="a classifier that the server trains on all prototypes, for all architectures",
        cost="the server trains a classifier",
    ),
    "fedmrl": Entry(
        module="protosphere.strategies.fedmrl",
        family="a second model that all clients share",
        source="Yi et al., 2024",
        up="weights of a companion model, whose features join its own",
        down="their mean over all architectures",
        cost="a second model per client",
    ),
    "fraug": Entry(
        module="protosphere.strategies.fraug",
        family="weights of one architecture, or of groups",
        source="Chen et al., ICCV 2023",
        up="its weights and those of a generator of features, but for its own part",
        down="its group's mean",
        cost="a generator per client",
    ),
}
