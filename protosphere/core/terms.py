"""The terms of help, reports and docs/concepts.md, each with its formula where it has one: one table for all three."""

from dataclasses import dataclass
from html import escape
from typing import Literal

Kind = Literal["figures", "rules", "baselines", "training", "words"]
HEADINGS: dict[Kind, str] = {
    "words": "Basic terms",
    "rules": "Inference rules",
    "baselines": "Baselines",
    "figures": "Metrics of a run",
    "training": "Training and communication",
}
NOTATION = (
    "N is the number of clients, K the number of classes, and T the last round. a_i(t) is the test accuracy of client "
    "i after round t, by one inference rule. n_i is the client's number of test samples, capped at "
    "`max-weight-ratio` times the clients' median. A(t) = Σ_i n_i a_i(t) / Σ_i n_i, and V(t) is the same on validation "
    "samples. Round 0, before training, is never counted.",
    "x is a sample and y its class. z(x) are the features and g(x) the logits of the client's own model. ẑ(x) are "
    "the public encoder's features, as unit vectors. n_ij is the number of training samples of class j at client i, "
    "and π_ij = (n_ij + 1/K) / (Σ_j n_ij + 1). p_ij is the mean of z(x) over these samples, and P_j is the global "
    "prototype of class j.",
)


@dataclass(frozen=True)
class Term:
    """A term: what it means in a sentence or two, and its formula, "" where it has none."""

    name: str
    kind: Kind
    meaning: str
    formula: str = ""

    @property
    def plain(self) -> str:
        """The meaning without the marks of code."""
        return self.meaning.replace("`", "")

    @property
    def tooltip(self) -> str:
        """All of it in one line."""
        return f"{self.plain} {self.formula}".strip()


_ALL = (
    Term(
        "selected",
        "figures",
        "Test accuracy after the round with the best validation accuracy.",
        "A(t*), t* = argmax_t V(t); ties go to the latest round",
    ),
    Term(
        "best",
        "figures",
        "Test accuracy after the round that is best on the test samples themselves.",
        "max_t A(t)",
    ),
    Term(
        "client-best",
        "figures",
        "Mean of each client's accuracy at its own best round on test samples, weighted by test samples.",
        "Σ_i n_i max_t a_i(t) / Σ_i n_i",
    ),
    Term(
        "client-best-unweighted",
        "figures",
        "The unweighted version of client-best.",
        "(1/N) Σ_i max_t a_i(t)",
    ),
    Term(
        "last-5",
        "figures",
        "Mean test accuracy of the last five evaluations, or of all if there are fewer.",
        "(1/5) Σ A(t)",
    ),
    Term("final", "figures", "Test accuracy after the last round.", "A(T)"),
    Term("final-unweighted", "figures", "The unweighted version of final.", "(1/N) Σ_i a_i(T)"),
    Term(
        "domain NAME",
        "figures",
        "Test accuracy of the clients of one domain (one source of data), after the headline's round, by the "
        "method's own inference rule.",
        "Σ_i n_i a_i(t) / Σ_i n_i over the domain's clients",
    ),
    Term(
        "domain-unweighted NAME",
        "figures",
        "The unweighted version of domain NAME.",
        "(1/N) Σ_i a_i(t) over the domain's N clients",
    ),
    Term(
        "headline",
        "figures",
        "The run's main metric: selected, or final if there are no validation samples. It uses the method's own "
        "inference rule or the one that `inference` names.",
    ),
    Term("worst client", "figures", "The lowest test accuracy of any client in a round.", "min_i a_i(t)"),
    Term(
        "ensemble",
        "figures",
        "Accuracy of the clients' averaged class probabilities on the shared test set (`ensemble-every`).",
        "argmax_j (1/N) Σ_i softmax(g_i(x))_j",
    ),
    Term(
        "exchange adds",
        "figures",
        "What a method gains from its exchange: its accuracy by a rule minus that of `local` by the rule's local "
        "counterpart, paired by seed.",
        "A(pool) − A(pool-local of `local`), and likewise encoder − encoder-local and classifier − classifier",
    ),
    Term("classifier", "rules", "The client's own model: its extractor, then its head.", "argmax_j g(x)_j"),
    Term("local-prototypes", "rules", "The class of the nearest local prototype.", "argmin_j ‖z(x) − p_ij‖"),
    Term(
        "global-prototypes",
        "rules",
        "The class of the nearest global prototype that the server sent; for `fedpagr` by cosine.",
        "argmin_j ‖z(x) − P_j‖",
    ),
    Term(
        "discriminant",
        "rules",
        "A linear discriminant on the private model's features. It uses the client's class means, class frequencies "
        "and feature covariance.",
        "argmax_j −½ (z(x) − p_ij)ᵀ Σ⁻¹ (z(x) − p_ij) + log(n_ij / Σ_j n_ij), Σ shrunk by 0.1 towards a scaled "
        "identity",
    ),
    Term(
        "encoder",
        "rules",
        "The exchanged classifier on a public encoder's features, over the classes of all clients. Under `privacy` it "
        "is the nearest mean by cosine. With `protosphere`, a client adds its own means of classes that nobody sent.",
        "argmax_j q_j, q = ẑ(x) W + b, W and b from the server",
    ),
    Term(
        "encoder-local",
        "rules",
        "The rule encoder without an exchange: a linear discriminant fitted to the client's own training samples.",
        "argmax_j ẑ(x) w_ij + b_ij + log(n_ij / Σ_j n_ij), w_ij = Σ_i⁻¹ m_ij, b_ij = −½ m_ijᵀ w_ij, m_ij: mean of ẑ",
    ),
    Term(
        "pool",
        "rules",
        "The weighted product of the class probabilities of the private model and of the exchanged classifier. "
        "The client chooses the weight w on validation samples (near 1/2 if they are few), and the temperature t ≤ 1 "
        "on training samples.",
        "argmax_j (1 − w) log softmax(g(x))_j + w log softmax(t q + log π_i)_j",
    ),
    Term(
        "pool-local",
        "rules",
        "The rule pool without an exchange: the client's own discriminant replaces the exchanged one.",
        "pool with q_j = ẑ(x) w_ij + b_ij and t = 1",
    ),
    Term(
        "received",
        "rules",
        "For methods that share weights: the classifier with the weights that the server just sent, before training.",
        "argmax_j g(x)_j with these weights",
    ),
    Term(
        "generic",
        "rules",
        "For `fedrod`: the generic head, without the client's personal one.",
        "argmax_j h(z(x))_j",
    ),
    Term(
        "received-generic",
        "rules",
        "For `fedrod`: the server's single model.",
        "argmax_j h(z(x))_j with the received weights",
    ),
    Term(
        "etf",
        "rules",
        "For `gfpl`: the fixed head, a simplex equiangular tight frame drawn from the seed.",
        "argmax_j h_jᵀ z̃(x), z̃ the projected features",
    ),
    Term(
        "majority class",
        "baselines",
        "A client always predicts the most frequent class of its training samples. A method below this has learnt "
        "nothing useful.",
        "argmax_j n_ij",
    ),
    Term("local", "baselines", "A method without an exchange: every client trains alone."),
    Term(
        "frame",
        "baselines",
        "A method without an exchange: `protonorm` with targets that come from the seed and lie far apart.",
    ),
    Term(
        "payload",
        "training",
        "Bytes of the exchanged values, up from the clients and down to them.",
    ),
    Term("on the wire", "training", "Bytes of whole messages: payload, names and evaluations."),
    Term(
        "gradient ratio",
        "training",
        "The strength of the loss that the method adds, relative to the cross-entropy, in a client's first batch of a "
        "round. Far below 1 the exchange hardly affects learning; far above 1 it outweighs the task.",
        "‖∂L_added/∂z‖ / ‖∂L_cross-entropy/∂z‖",
    ),
    Term(
        "target norm",
        "training",
        "Mean norm of the prototypes that clients received as targets; 0 means that they received none.",
        "mean_j ‖P_j‖",
    ),
    Term(
        "prototype norm",
        "training",
        "Mean norm of a client's own prototypes after training. Near 0, the features have collapsed. If it is far "
        "from the target norm, the features do not reach their targets.",
        "mean_j ‖p_ij‖",
    ),
    Term(
        "macro accuracy",
        "figures",
        "Mean of the per-class accuracies (balanced accuracy) over all clients' test samples in the last evaluation.",
        "(1/K) Σ_j right_j / samples_j",
    ),
    Term(
        "macro F1",
        "figures",
        "Mean of the per-class F1 scores over all clients' test samples in the last evaluation.",
        "(1/K) Σ_j 2 right_j / (samples_j + predicted_j)",
    ),
    Term(
        "ROC AUC",
        "figures",
        "The area under the ROC curve of one class against the rest (`roc-auc`), averaged over a client's classes, "
        "then over clients, weighted by test samples.",
        "Σ_i n_i auc_i / Σ_i n_i, auc_i = mean_j P(score_j of a sample of class j > score_j of another)",
    ),
    Term(
        "prototype",
        "words",
        "A feature vector that stands for a class. A local prototype is a client's mean feature vector of a class. "
        "The server combines these into global prototypes.",
        "p_ij = (1/n_ij) Σ z(x)",
    ),
    Term(
        "public encoder",
        "words",
        "A fixed feature extractor that all clients share, made without private samples.",
    ),
    Term(
        "inference rule",
        "words",
        "A way to predict a sample's class. A run reports several rules on the same models.",
    ),
    Term("partition", "words", "How the samples of a data set are divided among the clients of a simulation."),
    Term(
        "label skew",
        "words",
        "Clients hold different shares of the classes. The skew grows as `alpha` of the Dirichlet partition shrinks.",
        "shares of class j over clients ~ Dirichlet(α, …, α)",
    ),
    Term(
        "client selection",
        "words",
        "The choice of the clients that train in a round: a share `fraction-train`, drawn by the seed.",
    ),
    Term("trial", "words", "One run of a comparison: one method on one data set and partition, with one seed."),
    Term("site", "words", "A client of a deployment: a machine with its own samples that runs a SuperNode of Flower."),
)
TERMS = {term.name: term for term in _ALL}


def concepts_page() -> str:
    """docs/concepts.md."""
    lines = [
        "# Concepts",
        "",
        "`protosphere glossary` prints these terms. The formulas use the following symbols.",
        "",
        *(line for paragraph in NOTATION for line in (paragraph, "")),
    ]
    for kind, heading in HEADINGS.items():
        lines += [f"## {heading}", ""]
        for term in _ALL:
            if term.kind == kind:
                lines += [f"### {term.name}", "", escape(term.meaning, quote=False), ""]
                lines += [f"    {term.formula}", ""] if term.formula else []
    return "\n".join(lines).rstrip() + "\n"
