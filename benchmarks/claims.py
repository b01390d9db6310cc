"""docs/answers/claims.md from the claims of the papers and the stored figures of comparisons.

    python -m benchmarks.claims

A claim is tested on every data set of a comparison that has both methods, by a paired t-test over the seeds; Holm's
procedure (1979) keeps the chance of any false difference among these data sets at 5 %.
"""

import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.answers import PAGES, QUESTIONS, Answer
from benchmarks.common import described_parser, table_head, table_row
from protosphere.comparison.paired import p_value, rejected, seed_gaps

FEWEST_SEEDS = 3
HEAD = """# Which of the papers' claims appear?

Claims of five papers about their methods, tested here with small data, few rounds and small models. Larger data and
longer runs may show what does not appear. Differences are in percentage points of test accuracy, averaged over the
seeds of each data set, from the smallest to the largest. Significant: paired t-test, 5 %, Holm-corrected over these
data sets. `frame` is a control whose targets come from the seed, so that nothing is sent.
"""
FOOT = """
Where clients share a space, an exchange teaches: [`protosphere`](default.md), [classes that a client
lacks](lacked_classes.md).

**Made** by `python -m benchmarks.claims` from the stored figures of the pages named, which have command and commit.
"""


@dataclass(frozen=True)
class Contrast:
    """One method less another on one data set.

    Attributes:
        mean: over the seeds, in points.
        p_value: of a two-sided paired t-test.
    """

    mean: float
    p_value: float


def contrasts(answer: Answer, method: str, base: str, column: str) -> list[Contrast]:
    """Of every data set of a comparison on which both methods have at least three seeds."""
    result = []
    for row in answer.rows:
        figures, others = (answer.column(row, name, column) for name in (method, base))
        gaps = [100 * gap for gap in seed_gaps(figures, others)]
        if len(gaps) >= FEWEST_SEEDS:
            result.append(Contrast(statistics.fmean(gaps), p_value(gaps)))
    return result


def described(seen: Mapping[str, str]) -> str:
    """A comparison's differences in words."""
    answer = Answer(seen["of"])
    by_data_set = contrasts(answer, seen["method"], seen["base"], seen["rule"])
    means = [contrast.mean for contrast in by_data_set]
    significant = rejected([contrast.p_value for contrast in by_data_set])
    higher = sum(is_apart and mean > 0 for is_apart, mean in zip(significant, means, strict=True))
    lower = sum(significant) - higher
    rule = seen["rule"].removeprefix("metric: ").removesuffix(" selected").removesuffix(" final")
    counts = [
        f"{word} on {count} of {len(by_data_set)}" for count, word in ((higher, "higher"), (lower, "lower")) if count
    ]
    return (
        f"minus `{seen['base']}` by `{rule}`, {seen['of'].replace('_', ' ')}: {min(means):+.1f} to {max(means):+.1f}, "
        f"significantly {' and '.join(counts) or f'different on none of {len(by_data_set)}'}"
    )


def page(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Its lines."""
    yield HEAD
    yield table_head("claim", "verdict", "what was seen", "from", left=4)
    for claim in claims:
        seen = [*([claim["note"]] if "note" in claim else []), *map(described, claim.get("seen", []))]
        yield table_row([claim["claim"], f"**{claim['verdict']}**", "; ".join(seen), ", ".join(claim.get("pages", []))])
    yield FOOT.rstrip("\n")


def written() -> str:
    """The page."""
    claims = tomllib.loads((QUESTIONS / "claims.toml").read_text("utf-8"))["claims"]
    return "\n".join(page(claims)) + "\n"


if __name__ == "__main__":
    described_parser(__doc__).parse_args()
    (PAGES / "claims.md").write_text(written(), encoding="utf-8")
