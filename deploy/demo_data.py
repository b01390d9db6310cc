"""Handwritten digits as folders of images, one a site, as hospitals would have them: for the deployment demos."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SKEW = 1.0  # Dirichlet concentration: all sites hold most classes, in different numbers


def write_sites(folder: Path, sites: int = 3, seed: int = 0) -> list[Path]:
    """Deal scikit-learn's 1,797 digits to `sites` folders: `site-<i>/train/<class>/*.png` and `site-<i>/classes.txt`.

    Every image goes to one site; of each class, shares are drawn from a symmetric Dirichlet distribution.

    Returns:
        The sites' folders.
    """
    digits = load_digits()
    generator = np.random.default_rng(seed)
    roots = [folder / f"site-{site}" for site in range(sites)]
    for root in roots:
        root.mkdir(parents=True, exist_ok=True)
        (root / "classes.txt").write_text("".join(f"{name}\n" for name in digits.target_names))
    for label, name in enumerate(digits.target_names):
        rows = generator.permutation(np.flatnonzero(digits.target == label))
        cuts = np.cumsum(generator.dirichlet([SKEW] * sites))[:-1]
        for root, site_rows in zip(roots, np.split(rows, (cuts * len(rows)).astype(int)), strict=True):
            _write(root / "train" / str(name), site_rows, digits.images)
    return roots


def _write(folder: Path, rows: np.ndarray, images: np.ndarray) -> None:
    """The images of a class; none makes no folder."""
    for row in rows:
        folder.mkdir(parents=True, exist_ok=True)
        # 0 to 16 in the data set
        pixels = np.round(images[row] * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{row:04d}.png")
