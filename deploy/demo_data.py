"""Data of the demonstrations, `make deploy-demo` and `make docker-demo`: handwritten digits, a folder for each site."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SKEW = 1.0  # concentration of the Dirichlet distribution from which each class's shares are drawn


def write_sites(folder: Path, sites: int = 3) -> list[Path]:
    """Deal scikit-learn's 1,797 digits to `sites` folders: `site-<i>/train/<class>/*.png` and `site-<i>/classes.txt`.
    Every image goes to one site; all sites hold most classes, in different numbers.

    Returns:
        The sites' folders.
    """
    digits = load_digits()
    generator = np.random.default_rng(0)
    roots = [folder / f"site-{site}" for site in range(sites)]
    shares = generator.dirichlet([SKEW] * sites, len(digits.target_names))
    for row, label in enumerate(digits.target):
        target = roots[generator.choice(sites, p=shares[label])] / "train" / str(label) / f"{row:04d}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        # 0 to 16 in the data set
        Image.fromarray(np.round(digits.images[row] * (255 / 16)).astype(np.uint8)).save(target)
    for root in roots:
        (root / "classes.txt").write_text("".join(f"{name}\n" for name in digits.target_names))
    return roots
