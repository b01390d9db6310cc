"""Letters A to J in many fonts, as the folder `notmnist` for `tables/methods.toml`; nothing was chosen on them.

    python -m benchmarks.notmnist FOLDER    # FOLDER holds t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz

Both files: https://github.com/davidflanagan/notMNIST-to-MNIST, commit 17823f4: 10,000 images of Y. Bulatov's notMNIST.
Fonts repeat glyphs: of images equal to the byte the first alone is kept. Then the last 2,000 are the test samples.
"""

import gzip
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, Image, Value

from benchmarks.common import described_parser

SIDE, IMAGE_HEADER, LABEL_HEADER = 28, 16, 8  # pixels per side; bytes before the values
TEST_SAMPLES = 2000


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) of bytes, each once, and their labels (n,)."""
    pixels = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())[IMAGE_HEADER:]
    labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())[LABEL_HEADER:]
    images = np.frombuffer(pixels, np.uint8).reshape(-1, SIDE, SIDE)
    first = np.sort(np.unique(images, axis=0, return_index=True)[1])
    return images[first], np.frombuffer(labels, np.uint8)[first]


def main() -> None:
    parser = described_parser(__doc__)
    parser.add_argument("folder", type=Path)
    images, labels = read(parser.parse_args().folder)
    columns = Features({"image": Image(), "label": Value("int64")})
    target = Path("notmnist")
    target.mkdir(exist_ok=True)
    for split, part in {"train": slice(-TEST_SAMPLES), "test": slice(-TEST_SAMPLES, None)}.items():
        rows = Dataset.from_dict({"image": list(images[part]), "label": labels[part].tolist()}, features=columns)
        rows.to_parquet(target / f"{split}.parquet")
        print(f"{split}: {len(rows)} images")
    (target / "classes.txt").write_text("\n".join("ABCDEFGHIJ") + "\n", "utf-8")


if __name__ == "__main__":
    main()
