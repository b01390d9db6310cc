"""A data set of a hundred classes from one of ten: two digits side by side, whose label is the number that they write.

    python -m benchmarks.pairs_of_digits ../mnist pairs

Reads a folder with `train.parquet` and `test.parquet` of 28 x 28 grey images, and writes images of that size to
`pairs/train/<00 to 99>`. Each digit is taken once, so no two pairs share one, nor training and test rows.
"""

import argparse
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
from PIL import Image

SIDE = 28


def digits_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) uint8 and labels (n,) of both tables."""
    images, labels = [], []
    for split in ("train", "test"):
        table = parquet.read_table(folder / f"{split}.parquet")
        images += [np.asarray(Image.open(io.BytesIO(row["bytes"])).convert("L")) for row in table["image"].to_pylist()]
        labels += table["label"].to_pylist()
    return np.stack(images), np.array(labels)


def pair(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Both at half their size, side by side in the middle of an image of the old one."""
    halves = [digit.reshape(SIDE // 2, 2, SIDE // 2, 2).mean(axis=(1, 3)) for digit in (left, right)]
    image = np.zeros((SIDE, SIDE))
    image[SIDE // 4 : 3 * SIDE // 4] = np.hstack(halves)
    return image.round().astype(np.uint8)


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("digits", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    images, labels = digits_of(options.digits)
    order = np.random.default_rng(options.seed).permutation(len(images))
    couples = order[: len(order) // 2 * 2].reshape(-1, 2)
    for number, (left, right) in enumerate(couples.tolist()):
        folder = options.pairs / "train" / f"{labels[left]}{labels[right]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pair(images[left], images[right])).save(folder / f"{number:05}.png")
    print(f"{len(couples)} pairs in {options.pairs}")


if __name__ == "__main__":
    main()
