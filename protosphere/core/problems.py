"""The sentences that may leave a site: one for each kind of problem, with numbers and words of this program.

An error names its problem by a code. Whatever its full text quotes stays in the site's log: into a sentence come
numbers, shapes, the words below, and of another error what may be told of that one (errors.py).
"""

PROBLEMS = {
    # what the data path holds
    "dataset-setting": "the setting dataset names no data set, nor a list of different ones",
    "not-fetched": "the data set could not be fetched from the Hugging Face hub",
    "no-path": "its {setting} is no path",
    "no-folder": "its data path does not exist",
    "no-data-set": "its data path is no folder of one data set",
    "no-domains": "the folder of its domains does not hold a folder for each",
    "several-formats": "its data path holds data of several formats",
    "irregular-file": "something among its data is no regular file",
    "unreadable": "its data cannot be read: a file is damaged, or is not written as its name says",
    "storage": "its {storage} is damaged, or cannot be read or written",
    "no-rows": "its data have no samples to train on",
    "user-code": "code for its data or partition failed, or gives no samples that can be used",
    # classes and domains
    "no-classes": "its data are {content} without a classes.txt",
    "class-list": "its list of classes cannot be read, or names a class twice",
    "unlisted-class": "its data have a class that classes.txt, or another domain, does not name",
    "no-class": "row {row} of its {split} table has a label that is none of the classes",
    "many-classes": "its labels would make more than {most} classes",
    "loose-image": "an image of its data lies in no folder of a class",
    "domain": "one of its domains cannot be used: {error}",
    "domain-forms": "its domains are not all images or arrays of one shape and type, or tables of one form",
    # tables
    "no-named-column": "{setting} names a column that its data do not have",
    "no-usual-column": "its table has no {column} column of a usual name",
    "column-twice": "its table, or its settings, name a column twice",
    "columns-differ": "its tables do not have the same columns, of the same types",
    "column-type": "the {column} column of its table is of a type that it cannot have",
    "no-feature": "a column of its table has no name, or too many values for a category",
    "columns-json": "its table of numbers has no columns.json, or one that does not fit it",
    "not-in-columns-json": "row {row} of its {split} table has what its columns.json does not allow",
    "no-value": "row {row} of its {split} table has no {column}",
    "not-utf8": "row {row} of a table of its data is not UTF-8",
    "not-json": "row {row} of a table of its data is no JSON object",
    "other-fields": "row {row} of a table of its data has another number of fields than the header",
    "other-kind": "row {row} of a table of its data has a value of a kind that its column cannot have",
    "too-large": "a file of its data, or a row of one, has more than {most} bytes",
    # arrays and images
    "array-names": "its arrays lack x or y, or misname one",
    "array-shapes": "its arrays have shapes, axes or types that they cannot have, or that do not go together",
    "not-finite": "row {row} of its arrays has a value that is not finite",
    "no-image": "row {row} of its {split} table is no readable image of 8 bits a channel",
    "image-sizes": "row {row} of its {split} table has {size} pixels but the first image {first}: resize them, or set "
    "image-size",
    "image-size": "image-size is {size}, but its data are {content} and no images",
    # partitions and the shared test set
    "no-test-rows": 'its data, or one of its domains, have no official test samples: set split = "pooled", or another '
    "partition than way-shot",
    "split-group": 'a group has samples of both the train and the test table: set split = "pooled", or drop some',
    "groups": "samples that share a group count as one here: {error}",
    "single-rows": "the {partition} partition divides single samples, but those of the data come in groups",
    "one-domain": "the mixed partition gives each client one of several domains, but the data set is one",
    "few-classes": "the mixed partition gives each client at least {least} classes, but a domain has {got}",
    "few-rows": "a class has {rows} samples, but the {clients} clients that drew it in the {partition} partition want "
    "{wanted}: lower the number of clients, shots or ways, raise max-samples if it is set, or take another seed",
    "no-partition-table": "the partition table cannot be read here",
    "partition-table": "the partition table does not give each of {clients} clients, in order, a whole number of "
    "rows of each of {classes} classes",
    "partition-table-rows": "the partition table asks for {asked} samples of class {label}, of {rows}",
    "shared": "the shared test set cannot be used: {error}",
    "shared-form": "the shared test set has other inputs, columns or classes than its data",
    # which rows they are would say of somebody whether a site has him
    "shared-copies": "the shared test set holds copies of its training samples",
    # models
    "not-loaded": "a file or module that it names cannot be loaded here, or holds something else",
    "model-not-loaded": "its model cannot be imported, or not be called",
    "model-name": "its model is unknown, or none that one client can have",
    "model-query": "its model has another query than ?trainable=<number of layers>",
    "misfit": "its model does not fit inputs of shape {shape}: {error}",
    "no-module": "it is no torch module that gives one tensor",
    "output": "it gives an output of shape {shape} for one input",
    "width": "its {output} have shape {shape} for one input, but must have {wanted}",
    "small-inputs": "its inputs have shape {shape}; images need at least {least}x{least} pixels",
    "inputs": "its data are {content}, but its model takes {wanted}",
    "no-transformers": "hf: names need transformers, which its machine lacks",
    "part-not-loaded": "its {part} cannot be loaded, or is not there",
    "weights-lacking": "the weights of its encoder lack {tensors} tensors",
    "decoder": "its model is an encoder with a decoder",
    "vocabulary": "its tokenizer has {tokens} tokens, but its encoder embeds {embedded}",
    "few-tokens": "max-tokens is {most}, but its tokenizer adds {added} tokens to every text",
    "many-tokens": "max-tokens is {most}, but its encoder has {positions} positions",
    "layers": "trainable={asked} is more than its {layers} layers",
    "layers-shared": "its encoder's last layers cannot be distinguished, so ?trainable= can be 0 or left out",
    # encoders that a run names
    "encoder": "setting `encoder` cannot be used: {error}",
    "site-encoder": "the encoder that its SuperNode was started with, by --encoder, cannot be used: {error}",
    "encoder-name": "no encoder has that name",
    "encoder-texts": "the encoder takes no texts",
    "encoder-inputs": "the encoder takes no inputs of shape {shape}",
    "encoder-width": "the encoder gives {width} features, fewer than `feature-dim`",
    "encoder-varies": "the encoder does not give the same for a sample twice",
    "encoder-centre": "the encoder's `centre` is not {width} finite numbers",
    # clients
    "strategy": "setting `strategy` cannot be used: {error}",
    "node-config": "its node config's {name} is none that it can have",
    "node-columns": "its node config has {name}, but no data of its own",
    "node-shared": "its node config has a shared-test-path, but the run's setting of that name is empty: set it to "
    "where the server has the same test set",
    "site-columns": "the setting `{name}` differs from the site's own; leave it empty",
    "model-not-finite": "the model is not finite after training; lower its learning rates",
    "diverged-before": "its model diverged in the round that it trained last: {error}",
    "state-secret": "it keeps models of a run of this name whose secret this run does not know; start the run anew",
    "state-gone": "round {round} cannot start: it no longer has the state of an earlier one; resume from the run's "
    "newest checkpoint, or start a new run",
    "state-other-model": "its kept state is of another model than it now has",
    "state-sent-before": "it has lost what round {round} made, and was sent already; the next round brings it again",
}
# All that a sentence can say but numbers.
WORDS = frozenset({
    *("train", "test", "text", "image", "label", "group", "feature"),
    *("a table", "arrays", "flat vectors", "images", "images or numbers", "numbers", "texts"),
    *("features", "logits"),
    *("encoder", "encoder's weights", "image processor", "tokenizer"),
    *("dirichlet", "iid", "mixed", "pathological", "table", "way-shot"),
    *("data-path", "shared-test-path", "text-column", "label-column", "group-column", "partition-column"),
    *("data cache", "kept state", "privacy ledger"),
    *("device", "privacy", "privacy-delta", "privacy-epsilon", "partition-id", "num-partitions"),
})  # fmt: skip
