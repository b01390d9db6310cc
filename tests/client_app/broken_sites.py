"""Sites at which something is wrong, and what may be told of it: a row a site."""

import os

import numpy as np
import pyarrow as pa

from tests.client_app.sites import (
    AGE,
    GROUP_COLUMN,
    LABEL_COLUMN,
    NOTES,
    PINS,
    TEXT_COLUMN,
    Case,
    arrays,
    beside,
    beside_it,
    changed,
    coded,
    csv,
    domain,
    encoder,
    file_at_home,
    folder,
    images_of,
    json_lines,
    lost,
    named,
    newest,
    node,
    npz,
    of_another_run,
    only_a_later_state,
    other_description,
    own,
    parquet,
    picture,
    tested,
    too_large,
    without_a_layer,
)
from tests.data.conftest import encode

PIXELS = own(*folder())
LIST = ("classes.txt", "no\nyes\n")
TEXTS = [("train-canary.csv", "text,label,canary\n" + "canary,no,1\ncanary,yes,2\n" * 8), LIST]
COLUMNS = ("columns.json", '{"columns": [{"name": "canary", "kind": "number"}]}')
NUMBERS = ("train-canary.csv", "canary,label\n" + "1,no\n2,yes\n" * 8)
DEEP = encode(np.full((8, 8), 700, np.uint16))
BROKEN = pa.array([b"ok", b"canary \xff\xfe"]).view(pa.string())
GOOD = {"text": "a", "label": "no"}
AT = "{root}/canary-data"
HERE = {"dataset": AT, "min-samples": 1}
EVERY = HERE | {"dataset": AT + "/*"}
TWELVE = {"max-tokens": 12}
IN_GROUPS = {GROUP_COLUMN: "canary"}
MEIER = "text,label\na,canary Meier\n"
OFFICIAL = {"split": "official"}
LIMITED = own(*folder(), node={"privacy-epsilon": 3.0, "privacy-delta": 1e-5})
PRIVATE = {"privacy": "release", "encoder": "random", "image-size": 8}
ENSEMBLE = {"ensemble-every": 1, "shared-test-path": "{root}/canary-shared"}
TABLES = [
    Case("label-column names a column that its data do not have", csv("canary\na\n", label_column="canary_gone")),
    Case("name a column twice", csv("canary\na\n", text_column="canary", label_column="canary")),
    Case("no text column of a usual name", csv("canary,label\na,no\n")),
    Case("no image column of a usual name", parquet(canary=[1])),
    Case("no label column of a usual name", csv("text,canary\na,no\n")),
    Case("its tables do not have the same columns", parquet({"image": images_of(2)}, image=images_of(2), label=[0, 1])),
    Case(
        "its tables do not have the same columns",
        parquet({"text": ["a"], "canary": ["no"]}, {LABEL_COLUMN: "canary"}, text=["a"], canary=[0]),
    ),
    Case("the text column of its table is of a type", parquet(None, {TEXT_COLUMN: "canary"}, canary=[1], label=[0])),
    Case("the group column of its table is of a type", parquet(None, IN_GROUPS, text=["a"], label=[0], canary=[0.5])),
    Case("row 1 of its train table has no label", csv("text,label\na,no\ncanary,\n")),
    Case("row 0 of its train table has no group", csv("text,label,canary\na,no,\n", group_column="canary")),
    Case("row 1 of a table of its data is not UTF-8", parquet(text=["a", "b"], label=BROKEN)),
    Case("the label column of its table is of a type", parquet(image=images_of(1), label=[{"canary": 1}])),
    Case("row 1 of its train table has a label that is none", parquet(image=images_of(2), label=[0, AGE])),
    Case("row 1 of its train table has a label that is none", csv("text,label\na,no\nb,canary\n")),
    Case("its data are a table without a classes.txt", own(("train-canary.csv", MEIER), classes="")),
    Case("its data are a table without a classes.txt", named(("train-canary.csv", MEIER)), HERE),
    Case("its data are images without a classes.txt", named(*folder(names=("canary Meier", "yes"))), HERE),
    Case("label-column names a column that its data do not have", own(*folder(), node={LABEL_COLUMN: "canary"})),
    Case("its data cannot be read", own(("train-canary.parquet", b"canary"))),
    Case(
        "its tables do not have the same columns",
        own(("train-canary.csv", "text,label\na,no\n"), ("test-canary.csv", "text,canary\na,no\n")),
    ),
    Case("its data have no samples", csv("text,label\n")),
    Case("image-size is 8, but its data are texts", own(*TEXTS), {"image-size": 8}),
    Case("row 1 of a table of its data is not UTF-8", parquet(text=BROKEN, label=["no", "yes"])),
    Case("row 0 of its train table has no text", csv("text,label\n ,no\n")),
    Case("its data are texts, but its model takes images", own(*TEXTS)),
]
FILES = [
    Case("something among its data is no regular file", beside_it(os.mkfifo)),
    Case("a file of its data, or a row of one, has more than 68719476736 bytes", beside_it(too_large)),
    Case("its table, or its settings, name a column twice", csv("canary,canary\na,b\n")),
    Case("row 0 of a table of its data has another number of fields", csv("text,label\ncanary\n")),
    Case("row 0 of a table of its data is not UTF-8", csv(b"text,label\ncanary\xff,no\n")),
    Case("its data cannot be read", csv(b"canary\xff,label\na,no\n")),
    Case("its data cannot be read", csv("")),
    Case("has more than 4096 bytes", csv("text,label\n" + "canary" * 2000 + ",no\n")),
    Case("row 1 of a table of its data is not UTF-8", json_lines(GOOD, b'{"text": "canary\xff"}')),
    Case("row 1 of a table of its data is no JSON object", json_lines(GOOD, b'{"text": "canary')),
    Case("row 1 of a table of its data is no JSON object", json_lines(GOOD, ["canary"])),
    Case("has a value of a kind", json_lines(GOOD | {"label": ["canary"]})),
    Case("has a value of a kind", json_lines(GOOD | {"label": 1}, GOOD | {"label": "canary"})),
    Case("has a value of a kind", json_lines(GOOD | {"label": int(f"{AGE}0000000000000")})),
    Case("row 0 of a table of its data is not UTF-8", json_lines(b'{"text": "canary \\ud83d", "label": "no"}')),
]
FOLDERS = [
    Case("its data path does not exist", lambda root: {"data-path": f"{root}/canary-gone"}),
    Case("its data path is no folder of one data set", node(PIXELS, data_path=AT + "/classes.txt")),
    Case("its data-path is no path", lambda root: {"data-path": "canary"}),
    Case("its data path is no folder of one data set", node(PIXELS, data_path=AT + "/*")),
    Case("its data path holds data of several formats", own(("train-canary.csv", ""), *folder())),
    Case("its list of classes cannot be read", own(classes=b"canary\xff")),
    Case("its list of classes cannot be read", own(classes="canary\ncanary\n")),
    Case("its data have no samples to train on", own(("test-canary.csv", ""))),
    Case("its data path holds data of several formats", own(("train-canary.csv", ""), ("train-canary.json", ""))),
    Case("its data have no samples to train on", own(("canary.bin", ""))),
    Case("have a class that classes.txt, or another domain,", own(*folder(("canary/1.png", picture())))),
    Case("an image of its data lies in no folder of a class", own(*folder(("canary.png", picture())))),
    Case("is no readable image of 8 bits a channel", own(*folder(("no/canary.png", DEEP)))),
    Case("has 8×8 pixels but the first image 7×7", own(*folder(("no/canary.png", picture(0, 7))))),
    Case("is no readable image of 8 bits a channel", own(*folder(("no/canary.png", "canary")))),
    Case("its data cache is damaged, or cannot be read or written", file_at_home("cache", PIXELS)),
    Case("its data cache is damaged, or cannot be read or written", file_at_home("cache/assignments", PIXELS)),
    Case("have no official test samples", PIXELS, OFFICIAL),
    Case("of both the train and the test table", own(*TEXTS, tested("1"), node=IN_GROUPS), OFFICIAL),
]
GOOD_X, GOOD_Y = np.zeros((12, 8, 8), np.uint8), np.arange(12) % 2
ARRAYS = [
    Case("its data cannot be read", arrays("canary")),
    Case("shapes, axes or types that they cannot have", arrays(x=GOOD_X, y=GOOD_Y[:3], canary=GOOD_Y)),
    Case("shapes, axes or types that they cannot have", arrays(x=GOOD_X, y=GOOD_Y, axes="canary")),
    Case(
        "row 3 of its arrays has a value that is not finite",
        arrays(x=np.array([[0.0]] * 3 + [[np.nan]] + [[0.0]] * 8), y=GOOD_Y),
    ),
    Case("its arrays lack x or y", arrays(canary=GOOD_X)),
    Case("names a column that its data do not have", node(arrays(x=GOOD_X, y=GOOD_Y), label_column="canary")),
    Case("its data are arrays without a classes.txt", node(named(("canary.npz", "")), data_path=AT + "/canary.npz")),
    Case("has no columns.json, or one that does not", own(NUMBERS, ("columns.json", '{"canary": 1}'))),
    Case("what its columns.json does not allow", own(("train-canary.csv", "canary,label\nx,no\n"), COLUMNS)),
    Case(
        "row 1 of a table of its data has a value of a kind",
        own(("train-canary.jsonl", '{"canary": 1.5, "label": "no"}\n{"canary": "canary", "label": "no"}'), COLUMNS),
    ),
    Case("code for its data or partition failed", coded("raise RuntimeError('canary')")),
    Case("code for its data or partition failed", coded("return 'canary'[0]")),
    Case("its samples come from code of its own", node(coded("return []"), privacy_epsilon="3.0"), PRIVATE),
    Case("`dataset` or `partition` is somebody's own code", named(), {"partition": "canary:canary"}),
    Case("`dataset` or `partition` is somebody's own code", named(), {"dataset": "{root}/canary.py:canary"}),
    Case("augment is", arrays(x=GOOD_X[:, 0], y=GOOD_Y), {"augment": "flip"}),
    Case("its data have no samples", arrays(x=GOOD_X[:0], y=GOOD_Y[:0])),
]
GONE = AT + ",{root}/canary-gone"
WAY_SHOT = HERE | OFFICIAL | {"partition": "way-shot"}
ODD, CANARIES = ("no", "canary"), ("canary1", "canary2")
LISTED = ("classes.txt", "\n".join(CANARIES))
THIRD, UNTAUGHT = (("canary/2/1.png", picture()), ("canary/test/no/1.png", picture()))
RUNS = [
    Case("the setting dataset names no data set", named(), {"dataset": "canary"}),
    Case("could not be fetched from the Hugging Face hub", named(), {"dataset": "canary/canary"}),
    Case("the setting dataset names no data set", named(), {"dataset": AT + ",,digits"}),
    Case("the setting dataset names no data set", named(), {"dataset": AT + "/*,digits"}),
    Case("the setting dataset names no data set", named(), {"dataset": "/a/canary,/b/canary"}),
    Case("the folder of its domains does not hold", named(), EVERY),
    Case("the folder of its domains does not hold", named(("train/canary.png", "")), EVERY),
    Case("the folder of its domains does not hold", named(("canary.txt", "")), EVERY),
    Case("of its domains cannot be used: its data path does not", named(*folder(LIST)), HERE | {"dataset": GONE}),
    Case(
        "its domains are not all images or arrays",
        named(("canary.npz", npz(x=np.zeros((9, 4)), y=np.arange(9) % 2)), LIST),
        {"dataset": AT + "/canary.npz,digits"},
    ),
    Case(
        "its domains are not all images or arrays",
        named(*domain("a", "no", "yes"), *[("canary/" + name, held) for name, held in TEXTS]),
        EVERY,
    ),
    Case("its data have no samples to train on", named(UNTAUGHT, ("canary/train/no/.keep", ""), LIST), EVERY),
    Case("a class that classes.txt, or another", named(LIST, *folder(prefix="a/", names=ODD)), EVERY),
    Case("a class that classes.txt, or another", named(LIST, THIRD, *folder(prefix="canary/", names="01")), EVERY),
    Case("a class that classes.txt, or another", named(*domain("a", "no", "yes"), *domain("b", *ODD)), EVERY),
    Case("count as one here", named(*TEXTS), HERE | {GROUP_COLUMN: "canary", "min-samples": 50}),
    Case("or another partition than way-shot", named(*folder(LIST)), WAY_SHOT),
    Case("one of several domains", named(*folder(LIST)), HERE | {"partition": "mixed"}),
    Case("divides single samples", named(*TEXTS, tested("9")), WAY_SHOT | IN_GROUPS),
    Case(
        "a class has 8 samples",
        named(*(file for part in ("train/", "test/") for file in folder(prefix=part, names=CANARIES)), LISTED),
        WAY_SHOT | {"ways": 2, "ways-spread": 0},
    ),
    Case(
        "but a domain has 1",
        named(*folder(prefix="a/"), ("canary/no/1.png", picture()), LIST),
        EVERY | {"partition": "mixed", "ways": 2},
    ),
    Case("partition 9 does not exist", lambda root: {"partition-id": 9}),
    Case("setting `learning-rate` is -1.0", PIXELS, {"learning-rate": -1.0}),
]
SHARED = [
    Case("set has other inputs, columns or classes", beside(PIXELS, *folder(size=9)), ENSEMBLE),
    Case(
        "set has other inputs, columns or classes",
        beside(
            own(NUMBERS, COLUMNS),
            ("train.csv", "canary,label\n1,no\n1,yes\n"),
            LIST,
            ("columns.json", COLUMNS[1].replace('"number"', '"category", "values": ["1"]')),
        ),
        ENSEMBLE,
    ),
    Case("set has other inputs, columns or classes", beside(PIXELS, *folder(names=("canary", "yes"))), ENSEMBLE),
    Case("the shared test set holds copies of its training samples", beside(PIXELS, *folder()), ENSEMBLE),
    Case("its shared-test-path is no path", beside(PIXELS, here="canary"), ENSEMBLE),
    Case("shared test set cannot be used: its data path does", beside(PIXELS, here="{root}/canary-gone"), ENSEMBLE),
    Case("has a shared-test-path, but the run's", beside(PIXELS, here=AT), {"ensemble-every": 1}),
    Case(
        "the shared test set cannot be used: its data are a table without a classes.txt",
        beside(PIXELS, ("train.csv", MEIER)),
        ENSEMBLE,
    ),
]
SIZES = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
TWO_SIDED = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIZES.items()}
MODELS_OF_SITES = [
    Case("its model does not fit inputs of shape 1×8×8;", node(PIXELS, model="own_models:raising")),
    Case("it is no torch module", node(PIXELS, model="own_models:nothing")),
    Case("it is no torch module that gives one tensor", node(PIXELS, model="own_models:listing")),
    Case("an output of shape 1×1×64", node(PIXELS, model="own_models:cube")),
    Case("its features have shape 1×9", node(PIXELS, model="own_models:wide")),
    Case("its logits have shape 1×3", node(PIXELS, model="own_models:many")),
    Case("its model cannot be imported", node(PIXELS, model="canary_gone:network")),
    Case("or not be called", node(PIXELS, model="own_models:nn")),
    Case("its model is unknown, or none", node(PIXELS, model="tiny")),
    Case("its model is unknown, or none", node(PIXELS, model="can-ary:x")),
    Case("its model is unknown", node(PIXELS, model="canary")),
    Case("images need at least 8x8 pixels", node(own(*folder(size=7)), model="own_models:network")),
    Case("takes images", node(named(), model="tiny_cnn"), {"dataset": "spiral"}),
    Case("another query than ?trainable=", node(own(*TEXTS), model="hf:/canary?canary=1")),
    Case("another query than ?trainable=", node(own(*TEXTS), model="hf:/canary?trainable=canary")),
    Case("its model is unknown, or none", node(own(*TEXTS), model="hf:canary canary")),
    Case("its tokenizer cannot be loaded", node(own(*TEXTS), model="hf:/canary")),
    Case("its encoder cannot be loaded", encoder(network=False)),
    Case("its tokenizer adds 2 tokens", encoder(), {"max-tokens": 2}),
    Case("its encoder has 20 positions", encoder(), {"max-tokens": 21}),
    Case("but its encoder embeds 19", encoder(words=["canary"]), TWELVE),
    Case("last layers cannot be distinguished", encoder("Albert", "?trainable=1", embedding_size=16), TWELVE),
    Case("trainable=9 is more than its 4 layers", encoder(query="?trainable=9"), TWELVE),
    Case("the weights of its encoder lack 16 tensors", encoder(spoil=without_a_layer)),
    Case("an encoder with a decoder", encoder("Bart", d_model=32, **TWO_SIDED)),
]
OWN_MODEL = node(PIXELS, model="own_models:network")
ROUNDS = [
    Case("is not finite in epoch 1 of phase `train`", PIXELS, {"learning-rate": 1e30, "batch-size": 4}),
    Case("the model is not finite after training", OWN_MODEL, {"learning-rate": 1e30, "weight-decay": 1e30}),
    Case("the features are not finite", OWN_MODEL, {"learning-rate": 1e19, "weight-decay": 8e19}),
    Case("its kept state is damaged, or cannot be read or written", file_at_home("clients", PIXELS)),
    Case("no longer has the state of an earlier one", PIXELS, {}, lost),
    Case("its kept state is damaged", PIXELS, {}, other_description),
    Case("whose secret this run does not know", PIXELS, {}, of_another_run),
    Case("no longer has the state of an earlier one", PIXELS, {}, only_a_later_state),
    Case("its kept state is damaged", PIXELS, {}, lambda store: newest(store).write_bytes(b"canary")),
    Case("its kept state is of another model", OWN_MODEL, {}, changed("module/extractor", lambda t: t.flatten())),
    Case("its kept state is damaged", PIXELS, {}, changed("prototypes/labels", lambda t: -t - 1)),
]
NODES = [
    Case("its node config's device is none", node(PIXELS, device="canary")),
    Case("its node config's partition-id is none", node(PIXELS, partition_id="canary")),
    Case(
        "the setting `label-column` differs from the site's own",
        json_lines(*NOTES, **PINS),
        {LABEL_COLUMN: "canary_other"},
    ),
    Case("has text-column, but no data of its own", node(named(), text_column="canary")),
    Case("its node config's privacy is none", node(PIXELS, privacy="canary")),
    Case("its node config's privacy-epsilon is none", node(PIXELS, privacy_epsilon="canary"), PRIVATE),
    Case("it states no limit", PIXELS, PRIVATE),
    Case("lies in a file, and no run names files", LIMITED, PRIVATE | {"encoder": "/canary/mine.py"}),
    Case("its encoder's weights cannot be loaded", node(LIMITED, encoder="resnet18@/canary.pth"), PRIVATE),
]
BROKEN_SITES = [*TABLES, *FILES, *FOLDERS, *ARRAYS, *RUNS, *SHARED, *MODELS_OF_SITES, *ROUNDS, *NODES]
WELL = {
    "arrays": Case("", arrays(x=GOOD_X, y=GOOD_Y, canary=GOOD_Y)),
    "images with own figures": Case("", PIXELS, {"normalise": True, "augment": "flip-crop"}),
    "a table of numbers": Case("", own(NUMBERS, COLUMNS)),
    "code of its own": Case("", coded("return [([float(row % 2), row / 9], row % 2) for row in range(16)]")),
    "images": Case("", PIXELS),
    "a table of images": Case("", parquet(None, {LABEL_COLUMN: "canary"}, image=images_of(16), canary=[0, 1] * 8)),
    "texts": Case("", encoder(query="?trainable=1"), TWELVE),
    "a model of its own": Case("", OWN_MODEL),
    "a shared test set elsewhere": Case("", beside(PIXELS, *folder(rows=2, first=100)), ENSEMBLE),
}
