"""The server's state under `privacy = "release"`: the means of the releases, which it sends with each download for the
rule `encoder` (strategies/release.py)."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from protosphere.core.settings import Settings
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import ServerHalf, whole_vectors
from protosphere.strategies.release import encoder_means, join_means, with_classes
from protosphere.wire.payloads import Payload


class Releases:
    """The releases of one run.

    Args:
        half: the method's server half.

    Attributes:
        means: the mean of each class over the releases so far; None before the first.
    """

    def __init__(self, settings: Settings, half: ServerHalf):
        self._settings = settings
        self._half = half
        self.means: PrototypeSet | None = None

    def opening(self) -> Sequence[str]:
        """The lines before round 1 on what is withheld, and on what the guarantee does not cover."""
        if self._settings.privacy_measure:
            return [
                "warning: `privacy-measure` is true: figures of private samples leave in the clear, outside the "
                "guarantee of `privacy`"
            ]
        return [
            "  accuracy is withheld by the clients: `protosphere report --state <client's folder>` prints it at a site",
            "  not covered by `privacy`: how long a client takes, that it takes part, its model, class list, "
            "domain and name, other code than this, and samples that come from the run's partition instead of the "
            "site's own data",
        ]

    def take(self, uploads: Mapping[int, Payload]) -> Mapping[int, Payload]:
        """Store the means of the uploads, and return the uploads for the method."""
        released = with_classes(uploads)
        self.means = encoder_means(whole_vectors(self._half, released), self._settings.privacy_scale, self.means)
        return released

    def beside(self, download: Payload | None, dim: int) -> Payload | None:
        """A download, together with the means."""
        return join_means(download, self.means, dim)

    def tensors(self) -> Mapping[str, Tensor]:
        """For the checkpoint."""
        return {} if self.means is None else self.means.fields()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`."""
        self.means = PrototypeSet(**tensors) if tensors else None
