"""FedPer (Arivazhagan et al., 2019): base layers are shared, the last layers stay local.

    client   trains all layers together by CE; sends the base, keeps the last `fedper.personal-layers`
    server   base = sum_{i in S} n_i base_i / sum_{i in S} n_i
    predict  the received base with the client's own last layers: `received`

One personal layer is the classifier; two are the classifier and the projection to R^d.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from protosphere import method as m
from protosphere.strategies.weights import AVERAGING, SharedObjective, base_of, both_ways


@m.method_settings
class FedPerSettings:
    """`fedper.*`.

    Attributes:
        personal_layers: last layers that stay local (2: also the projection to d).
    """

    personal_layers: Annotated[int, Field(ge=1, le=2)] = 1


class FedPerObjective(SharedObjective):
    @property
    def parts(self) -> tuple[str, ...]:
        return (base_of(self.options[FedPerSettings].personal_layers),)


METHOD = replace(
    AVERAGING,
    objective=FedPerObjective,
    settings={"fedper": FedPerSettings},
    exchange=lambda options: both_ways(base_of(options[FedPerSettings].personal_layers)),
)
