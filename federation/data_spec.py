"""The settings that decide who holds which rows, for the data floor: clients and `protosphere run` ask alike."""

from data.assignment import DataSpec
from federation.settings import Settings


def data_spec(settings: Settings, clients: int) -> DataSpec:
    """What `data.client_data` needs to know of a run with that many clients."""
    return DataSpec(
        dataset=settings.dataset,
        clients=clients,
        partition=settings.partition,
        alpha=settings.alpha,
        classes_per_client=settings.classes_per_client,
        min_samples=settings.min_samples,
        max_samples=settings.max_samples,
        split=settings.split,
        test_share=settings.test_share,
        validation_share=settings.validation_share,
        seed=settings.seed,
        spiral_noise=settings.spiral_noise,
        spiral_points=settings.spiral_points,
    )
