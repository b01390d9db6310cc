"""MIMIC-IV's notes with their discharge destinations, as the folder `mimic-discharge` for `--preset fedpagr-mimic-iv`.

    python benchmarks/mimic_discharge.py

Run it where these files of PhysioNet lie; all notes must fit in memory:

- `mimic-iv-bhc.csv` of MIMIC-IV-Ext-BHC 1.2.0 (270,033 notes);
- `note/discharge.csv.gz` of MIMIC-IV-Note, which links notes to patients and stays;
- `hosp/admissions.csv.gz` of MIMIC-IV, which has the destination of a stay.

The paper does not publish its mapping of destinations to six classes; this one is ours. A note may name the
destination, in which case a model reads the answer.
"""

from pathlib import Path

import pandas as pd

CLASSES = {
    "HOME": "Home",
    "HOME HEALTH CARE": "Home Health",
    "SKILLED NURSING FACILITY": "SNF",
    "REHAB": "Rehab",
    "DIED": "Expired",
}


def read(file: str, columns: list[str]) -> pd.DataFrame:
    """A table's columns, unchanged."""
    # as strings: ids stay strings, and a note that reads "NA" is not missing
    return pd.read_csv(file, usecols=columns, dtype=str, keep_default_na=False)


notes = read("mimic-iv-bhc.csv", ["note_id", "input"])
owners = read("note/discharge.csv.gz", ["note_id", "subject_id", "hadm_id"])
stays = read("hosp/admissions.csv.gz", ["hadm_id", "discharge_location", "hospital_expire_flag"])

table = notes.merge(owners, on="note_id", validate="one_to_one").merge(stays, on="hadm_id", validate="many_to_one")
table["label"] = table["discharge_location"].map(CLASSES).fillna("Other")
table.loc[table["hospital_expire_flag"] == "1", "label"] = "Expired"
table = table.rename(columns={"input": "text"})[["text", "label", "subject_id"]]
table = table[table["text"].str.strip() != ""]

folder = Path("mimic-discharge")
folder.mkdir(exist_ok=True)
table.to_parquet(folder / "train.parquet", index=False)
(folder / "classes.txt").write_text("\n".join([*CLASSES.values(), "Other"]) + "\n")
print(f"{len(table)} of {len(notes)} notes of {table['subject_id'].nunique()} patients")
print(table["label"].value_counts())
