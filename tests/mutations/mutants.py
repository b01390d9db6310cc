"""Small wrongs, and for each the tests that must notice: nothing that is caught today may pass tomorrow."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One line changed: where, what stands there once, what is put in its place, and pytest's words that must fail."""

    file: str
    before: str
    after: str
    killers: str


P, S, R, W, C = (
    "tests/prototypes/",
    "tests/strategies/",
    "server_app/",
    "protosphere/wire/",
    "client_app/",
)
ON = S + "test_devices.py -k "
COMPARISON = "protosphere/comparison/"
D = "data/"

MUTANTS = {
    # --- mathematics
    "a mean divided by all": Mutant(
        "protosphere/prototypes/aggregation.py",
        "return sums / totals.unsqueeze(1)",
        "return sums / totals.sum()",
        P + "test_aggregation.py",
    ),
    "counts forgotten in the weighted mean": Mutant(
        "protosphere/prototypes/aggregation.py",
        'if how == "weighted" else',
        'if how == "none" else',
        P + "test_aggregation.py",
    ),
    "a trimmed mean that trims one end": Mutant(
        "protosphere/prototypes/aggregation.py", "[cut : len(rows) - cut]", "[cut:]", P + "test_aggregation.py"
    ),
    "no liar cut of three": Mutant(
        "protosphere/prototypes/aggregation.py",
        "if trim and rows > 2 else",
        "if trim and rows > 9 else",
        P + "test_aggregation.py",
    ),
    "a sum for the mean over d": Mutant(
        "protosphere/prototypes/losses.py",
        'rows * features.shape[1] if reduction == "mse" else rows',
        "rows",
        P + "test_losses.py",
    ),
    "absent targets pull": Mutant(
        "protosphere/prototypes/losses.py",
        "covered = present[labels]\n    # a sample without a target",
        "covered = torch.ones_like(labels, dtype=torch.bool)\n    # a sample without a target",
        P + "test_losses.py",
    ),
    "the farthest prototype wins": Mutant(
        "protosphere/prototypes/prediction.py",
        "torch.where(present, -distances, -torch.inf)",
        "torch.where(present, distances, -torch.inf)",
        P + "test_discriminant.py tests/client_app/test_evaluate.py",
    ),
    "a repulsion that attracts": Mutant(
        "protosphere/prototypes/sphere.py",
        "energies *= -0.5",
        "energies *= 0.5",
        P + "test_sphere.py " + P + "test_alignment.py",
    ),
    "own weight among the others": Mutant(
        "protosphere/prototypes/personalisation.py",
        "weights[torch.arange(len(block), device=rows.device), diagonal] = 0",
        "pass",
        P + "test_personalisation.py",
    ),
    "far prototypes weigh most": Mutant(
        "protosphere/prototypes/personalisation.py",
        "weights.add_(EPSILON).reciprocal_()",
        "weights.add_(EPSILON)",
        P + "test_personalisation.py",
    ),
    "a fused variance without the spread of means": Mutant(
        "protosphere/prototypes/fusion.py",
        "pooled(variances + (means - centres[clusters]).square())",
        "pooled(variances)",
        P + "test_fusion.py",
    ),
    "a refinement that forgets the sphere": Mutant(
        "protosphere/prototypes/refinement.py",
        "points = normalize(free.detach(), dim=1)",
        "points = free.detach()",
        P + "test_refinement.py",
    ),
    "bits beyond sixteen": Mutant(
        "protosphere/prototypes/rounding.py",
        "(mantissas * 2.0**bits).round() / 2.0**bits",
        "mantissas",
        P + "test_rounding.py",
    ),
    # --- methods
    "mu forgotten at the client": Mutant(
        "strategies/tinyproto.py",
        "return prototypes.with_vectors(mu * prototypes.vectors)",
        "return prototypes",
        S + "test_tinyproto.py",
    ),
    "class counts in the last digits": Mutant(
        "strategies/tinyproto.py",
        "to_significant_bits(sums, UPLOADED_BITS)",
        "sums",
        S + "test_tinyproto.py",
    ),
    "gamma forgotten": Mutant(
        "strategies/protonorm.py",
        "directions.with_vectors(self.options[ProtoNormSettings].gamma * directions.vectors)",
        "directions",
        S + "test_fedproto.py -k gamma",
    ),
    "a class forgotten that nobody reported": Mutant(
        "strategies/contract.py",
        "return prototypes_of_state(state).updated_by(fresh) if state else fresh",
        "return fresh",
        S + "test_fedproto.py",
    ),
    "a classifier that is not anchored": Mutant(
        "strategies/fedpagr.py", "state.module.anchor(prototypes)", "pass", S + "test_consensus.py"
    ),
    "mixtures in every round": Mutant(
        "strategies/gfpl.py",
        "round_number % self.exchange_every == 0",
        "round_number >= 1",
        S + "test_gfpl.py",
    ),
    "a frame that the data move": Mutant(
        "strategies/frame.py",
        'generator=m.generator(seed, "frame")',
        "generator=None",
        S + "test_frame.py",
    ),
    "all clients weigh alike": Mutant(
        "strategies/weights.py", 'if self.weighting == "samples" else 1.0', "if False else 1.0", S + "test_weights.py"
    ),
    "architectures mixed": Mutant(
        "strategies/weights.py",
        "key = hashlib.blake2b(in_common.encode(), digest_size=16).hexdigest()",
        'key = ""',
        S + "test_weights.py",
    ),
    "what came is not loaded": Mutant(
        "strategies/weights.py", "tensors[name].copy_(tensor)", "pass", S + "test_weights.py -k replaces"
    ),
    "the first upload only": Mutant(
        "strategies/weights.py", "total[name] += tensor", "total[name] = tensor", S + "test_weights.py"
    ),
    "an anchor's momentum once a round": Mutant(
        "strategies/fedfa.py",
        "momentum ** self.settings.local_epochs",
        "momentum",
        S + "test_class_vectors.py -k anchors",
    ),
    "a mean over other pairs than all": Mutant(
        "protosphere/prototypes/losses.py",
        "products = products * (labels.unsqueeze(1) != labels)",
        "products = products[labels.unsqueeze(1) != labels]",
        S + "test_generators.py -k diversity",
    ),
    "a share that decays": Mutant(
        "strategies/apfl.py", '"weight_decay": 0.0, "bounds"', '"bounds"', S + "test_own_models.py -k apfl"
    ),
    "a share that leaves its bounds": Mutant(
        "strategies/apfl.py", ', "bounds": (0.0, 1.0)', "", S + "test_own_models.py -k apfl"
    ),
    "a share that is clamped in the graph": Mutant(
        "models/companion.py",
        "{name: self.alpha * p +",
        "{name: self.alpha.clamp(0, 1) * p +",
        S + "test_own_models.py -k apfl",
    ),
    "a negative variance among others": Mutant(
        W + "arrays.py", "bool((tensor < 0).any())", "bool((tensor < 0).all())", "tests/wire/test_uploads.py"
    ),
    "weights by all rows": Mutant(
        "strategies/weights.py", "float(identity.rows[0])", "float(sum(identity.rows))", S + "test_weights.py -k loops"
    ),
    # --- wire and safety
    "a mask that lets all through": Mutant(
        "strategies/tinyproto.py",
        "expand(prototypes.vectors, masks[prototypes.labels])",
        "expand(prototypes.vectors, masks[prototypes.labels * 0])",
        S + "test_tinyproto.py",
    ),
    "settings of others are read": Mutant(
        "server_app/agreement.py",
        "if identity.settings != terms.settings:",
        "if False:",
        "tests/server_app/test_roster.py",
    ),
    "factors of any ranks": Mutant(
        "strategies/fedkd.py",
        "if len(right_factor) and left_factor.shape[1] != len(right_factor):",
        "if False:",
        S + "test_fedkd.py",
    ),
    "shapes of any size": Mutant(
        W + "arrays.py",
        "if not all(0 <= size <= most for size, most in zip(shape, largest, strict=True)):",
        "if False:",
        "tests/wire/test_uploads.py",
    ),
    "no norm is too long": Mutant(
        W + "arrays.py",
        "if len(norms) and float(norms.max()) > max_norm:",
        "if False:",
        "tests/wire/test_uploads.py",
    ),
    "labels in any order": Mutant(
        W + "arrays.py",
        "if bool((values.diff() < 0).any()):",
        "if False:",
        "tests/wire/test_uploads.py",
    ),
    "weights that are not finite": Mutant(
        W + "arrays.py",
        "if not bool(tensor.isfinite().all()):\n            raise MessageError",
        "if False:\n            raise MessageError",
        "tests/wire/test_uploads.py",
    ),
    "a wide scatter counts whole": Mutant(
        "strategies/statistics.py",
        "shares = (traces[traces > 0].median() / traces.clamp(min=1e-300)).clamp(max=1)",
        "shares = torch.ones_like(traces)",
        S + "test_statistics.py -k median",
    ),
    "a far mean counts whole": Mutant(
        "protosphere/prototypes/aggregation.py",
        "centres[label] = clipped(points).mean(dim=0)",
        "centres[label] = points.mean(dim=0)",
        S + "test_statistics.py -k holders",
    ),
    "every node has a vote": Mutant(
        "server_app/agreement.py",
        "groups.setdefault(values, {})[identity.partition] = identity",
        "groups.setdefault(values, {})[id(identity)] = identity",
        "tests/server_app/test_roster.py -k vote",
    ),
    "a claim is believed": Mutant(
        "protosphere/wire/claims.py",
        "if claim > most}",
        "if claim > most * 1e9}",
        "tests/wire/test_claims.py",
    ),
    "a foreign class counts": Mutant(
        R + "exchange.py",
        "if foreign_labels := set(vectors.labels.tolist()) - set(identity.classes):",
        "if foreign_labels := set():",
        "tests/server_app/test_replies.py",
    ),
    "only the newest download is kept": Mutant(
        C + "store.py",
        "for name in (RECEIVED, RECEIVED_BEFORE):",
        "for name in (RECEIVED,):",
        "tests/client_app/test_store.py",
    ),
    "any home will do": Mutant(
        "protosphere/core/home.py",
        "if not stores(run).is_dir():",
        "if False:",
        "tests/core/test_small_parts.py -k home",
    ),
    "all runs have one store": Mutant(
        "protosphere/record/folder.py",
        "secrets.token_hex(4)",
        "'0' * 8",
        "tests/record/test_folder.py",
    ),
    "a path in an error": Mutant(
        C + "public_errors.py",
        "    if simulated() and not has_own(node):\n        return full_text",
        "    return full_text",
        "tests/client_app/test_public_errors.py",
    ),
    # --- rounds, stores, resume
    "a stale store goes unnoticed": Mutant(
        C + "store.py",
        "if trained and (newest is None or newest < trained):",
        "if False:",
        "tests/client_app/test_store.py",
    ),
    "a checkpoint without constants": Mutant(
        R + "checkpoint.py",
        '"constants": dict(state.constants),',
        '"constants": {},',
        "tests/server_app/test_resume.py -k constants",
    ),
    "sampling that forgets the round": Mutant(
        R + "roster.py",
        '"round", server_round, "sample"',
        '"round", 0, "sample"',
        "tests/server_app/test_rounds.py",
    ),
    "failures are not counted": Mutant(
        R + "strategy.py", "else self.failed_in_a_row + 1", "else 0", "tests/server_app/test_failures.py -k row"
    ),
    "patience that an equal mean restores": Mutant(
        R + "callbacks.py",
        'validation["mean"] > self._best',
        'validation["mean"] >= self._best',
        "tests/server_app/test_stopping.py",
    ),
    "a resume that has all its patience again": Mutant(
        R + "callbacks.py", "goes_on = self.on_round(line)", "pass", "tests/server_app/test_stopping.py"
    ),
    "prototypes of the round before": Mutant(
        C + "train.py",
        "elif measures:\n        measure(objective, state, data)\n",
        "elif measures:\n        pass\n",
        "tests/client_app/test_train.py",
    ),
    "prototypes of an earlier model": Mutant(
        C + "train.py",
        "        state.prototypes = state.covariance = state.features = None\n        refuse_spoilt(",
        "        refuse_spoilt(",
        "tests/strategies/test_contract.py::test_who_is_evaluated_rarely_trains_sends_and_scores_the_same[local]",
    ),
    # --- devices that this machine lacks
    "indices that stay on the host": Mutant(
        C + "train.py",
        "torch.randperm(rows, generator=order).to(device)",
        "torch.randperm(rows, generator=order)",
        ON + "cuda-fedproto",
    ),
    "a draw there by the host's generator": Mutant(
        C + "train.py",
        "torch.randperm(rows, generator=order).to(device)",
        "torch.randperm(rows, generator=order, device=device)",
        ON + "cuda-fedproto",
    ),
    "a loss that is read in every batch": Mutant(
        C + "train.py", "sums.get(name, 0.0) + part.detach()", "sums.get(name, 0.0) + part.item()", ON + "cuda-local"
    ),
    "targets that stay on the host": Mutant(
        C + "store.py", "targets.to(device=device)", "targets", ON + "cuda-fedproto"
    ),
    "noise that stays on the host": Mutant(
        "models/generator.py",
        "torch.rand(rows, self.noise_dim, generator=generator).to(self.held.device)",
        "torch.rand(rows, self.noise_dim, generator=generator)",
        ON + "cuda-fedgen",
    ),
    "float64 where there is none": Mutant(
        C + "evaluate.py", "data.train, data.transform).to(device)", "data.train, data.transform)", ON + "mps-fedproto"
    ),
    # --- statistics in a public encoder's space
    "classes' distances in a covariance within them": Mutant(
        "protosphere/prototypes/prediction.py",
        "(moment.double() - of_the_means)",
        "(moment.double() + 0 * of_the_means)",
        S + "test_class_statistics.py -k dealt",
    ),
    "priors forgotten in a discriminant": Mutant(
        "protosphere/prototypes/prediction.py",
        "return weight, priors - (",
        "return weight, 0 * priors - (",
        S + "test_class_statistics.py -k dealt",
    ),
    "the mean of clients' moments": Mutant(
        "strategies/fedcgs.py",
        "(moment + moment.T) / 2 * weights.sum()",
        "(moment + moment.T) / 2",
        S + "test_class_statistics.py -k dealt",
    ),
    "a class that nobody has": Mutant(
        "strategies/encoder_space.py",
        "masked_fill(presence == 0, -torch.inf)",
        "masked_fill(presence < 0, -torch.inf)",
        S + "test_one_exchange.py -k nobody_has",
    ),
    "a ridge regression without its ridge": Mutant(
        "strategies/fed3r.py", "clamp(min=0) + strength)", "clamp(min=1e-9))", S + "test_class_statistics.py -k 1e_10"
    ),
    "sums that forget how many samples they are of": Mutant(
        "strategies/fed3r.py",
        "gram += samples * tensors",
        "gram += 5 * tensors",
        S + "test_class_statistics.py -k over_the_wire",
    ),
    "sums of more samples than their products": Mutant(
        "strategies/fed3r.py",
        "if explained > explicable + EXPLAINED",
        "if False",
        S + "test_one_exchange.py -k refused",
    ),
    "a scatter of means divided by their number": Mutant(
        "strategies/fedcof.py", "max(len(means) - 1, 1)", "len(means)", S + "test_class_statistics.py -k random_splits"
    ),
    "a client that is heard twice": Mutant(
        "strategies/one_exchange.py",
        "for partition, upload in uploads.items() if partition not in heard}",
        "for partition, upload in uploads.items()}",
        S + "test_one_exchange.py -k sampled",
    ),
    "a guard that one sample less passes": Mutant(
        "strategies/one_exchange.py",
        "counts[labels] >= self.options[self.kind].fewest",
        "counts[labels] >= self.options[self.kind].fewest - 1",
        S + "test_one_exchange.py -k stay_at_home",
    ),
    "a variance a dimension where there is to be one": Mutant(
        "protosphere/prototypes/mixture.py", "    if spherical:\n", "    if False:\n", P + "test_mixture.py -k scikit"
    ),
    "another encoder than the run's": Mutant(
        "protosphere/serving/encoder_rule.py",
        "if self.fingerprint not in",
        "if False and self.fingerprint not in",
        "tests/serving/test_predict.py -k encoder_needs",
    ),
    # --- figures that are told
    "shares of the predicted class": Mutant(
        "protosphere/reports/plots.py",
        "totals = counts.sum(axis=1, keepdims=True)",
        "totals = counts.sum(axis=0, keepdims=True)",
        "tests/reports/test_report.py -k true_class",
    ),
    "values a round of mixed formats": Mutant(
        "protosphere/comparison/tables.py",
        "values.notna().all()",
        "values.notna().any()",
        "tests/comparison/test_tables.py -k values_a_round",
    ),
    "one label for two models of one name": Mutant(
        "protosphere/reports/plots.py",
        "if label in repeated_labels else label)",
        "if label in () else label)",
        "tests/reports/test_report.py -k models_of_one_file",
    ),
    "a path in the page": Mutant(
        "protosphere/reports/plots.py",
        'short = [placeless(name) or "?" for name in names]',
        'short = [name or "?" for name in names]',
        "tests/reports/test_report.py -k models_of_one_file",
    ),
    # --- privacy
    "noise for a row without its count": Mutant(
        "protosphere/prototypes/release.py",
        "(9 if self.moments else 5) * B",
        "(8 if self.moments else 4) * B",
        P + "test_release.py",
    ),
    "a row as long as it comes": Mutant(
        "protosphere/prototypes/release.py",
        "integers = (B * steps / lengths",
        "integers = (B * steps / STEPS",
        P + "test_release.py",
    ),
    "a group's sum for its mean": Mutant(
        "protosphere/prototypes/release.py",
        "int(members.sum()), rounding_mode",
        "1, rounding_mode",
        P + "test_release.py",
    ),
    "noise taken for a class, whatever the number of classes": Mutant(
        "protosphere/prototypes/release.py",
        "1 - SPURIOUS / self.num_classes",
        "1 - SPURIOUS",
        P + "test_release.py",
    ),
    "a rho that errs downwards": Mutant(
        "protosphere/prototypes/accounting.py",
        "np.log(ORDERS) - np.log(alpha) - (",
        "-np.log(alpha) - (",
        P + "test_accounting.py",
    ),
    "a Laplace with too many zeros": Mutant(
        "protosphere/prototypes/discrete_gaussian.py",
        "if size or not negative:",
        "if True:",
        P + "test_discrete_gaussian.py",
    ),
    "noise before it is paid": Mutant(
        C + "privacy_ledger.py",
        "            exact = sums()\n",
        "            exact = noisy(sums(), asked.variance, draw)\n",
        "tests/client_app/test_privacy_ledger.py -k killed",
    ),
    "each run pays anew": Mutant(
        C + "privacy_ledger.py",
        "content = [dict(self.facts),",
        "content = [self.run,",
        "tests/client_app/test_privacy_ledger.py",
    ),
    "a limit of single releases": Mutant(
        C + "privacy_ledger.py",
        "epsilon_of(spent + request.rho, delta)",
        "epsilon_of(request.rho, delta)",
        "tests/client_app/test_privacy_ledger.py",
    ),
    "figures of training under privacy": Mutant(
        C + "private_client.py",
        "if not self.settings.privacy_measure or report is None:",
        "if report is None:",
        "tests/client_app/test_private_client.py -k same_bytes",
    ),
    "seconds under privacy": Mutant(
        C + "private_client.py",
        "self.hides_errors = not self.settings.privacy_measure",
        "self.hides_errors = False",
        "tests/client_app/test_private_client.py -k same_bytes",
    ),
    "rows in the identity under privacy": Mutant(
        C + "private_client.py",
        "classes=all_classes, rows=())",
        "classes=all_classes)",
        "tests/client_app/test_private_client.py -k same_bytes",
    ),
    "an error that tells of rows": Mutant(
        C + "private_client.py",
        "self._note_error(instruction, error)\n            return None",
        "self._note_error(instruction, error)\n            raise",
        "tests/client_app/test_private_client.py -k goes_wrong",
    ),
    "a split that other rows move": Mutant(
        "data/partition/splits.py",
        "if share < test_share else",
        "if share < test_share * len(pool) / 600 else",
        "tests/data/test_client_data.py -k secret",
    ),
    # --- data
    "short rows of CSV skipped": Mutant(
        D + "forms/table_files.py",
        'handler = (lambda row: "skip") if skips_ragged else None',
        'handler = lambda row: "skip"',
        "tests/data/test_refusals.py",
    ),
    "a missing category that is none": Mutant(
        D + "forms/table_schema.py",
        "            features[missing, -1] = 1",
        "            features[missing, 0 if self.kind == CATEGORY else -1] = 1",
        "tests/data/test_tables.py",
    ),
    "a missing number without its indicator": Mutant(
        D + "forms/table_schema.py",
        "        if self.missing:\n            features[missing, -1] = 1",
        "        if self.missing and self.kind != NUMBER:\n            features[missing, -1] = 1",
        "tests/data/test_tables.py",
    ),
    "a wrong cell let through": Mutant(
        D + "forms/table_schema.py",
        "if wrong.any() and not independent:",
        "if wrong.all() and not independent:",
        "tests/data/test_refusals.py",
    ),
    "classes in the order of their names turned round": Mutant(
        D + "forms/labels.py",
        "if are_whole else tuple(names)",
        "if are_whole else tuple(names[::-1])",
        "tests/data/test_tables.py",
    ),
    "ill with a blank another class": Mutant(
        D + "forms/words.py",
        'unicodedata.normalize("NFC", value).strip()',
        'unicodedata.normalize("NFC", value)',
        "tests/data/test_tables.py",
    ),
    "the patient 7.0 another than 7": Mutant(
        D + "forms/words.py",
        r'r"^(-?[0-9]+)\.0+$"',
        r'r"^(-?[0-9]+)\.1+$"',
        "tests/data/test_tables.py",
    ),
    "stored sites in the order of their letters": Mutant(
        D + "forms/labels.py",
        "key=int if are_numbers else None",
        "key=None",
        "tests/data/test_tables.py -k sites",
    ),
    "class numbers beside a list read as names": Mutant(
        D + "forms/labels.py",
        "is_position = are_positions and not isinstance(value, str | bytes)",
        "is_position = False",
        "tests/data/test_tables.py -k positions",
    ),
    "a patient on two sides of a split": Mutant(
        D + "partition/units.py",
        "return np.sort(self.rows[_mark(units, len(self))[self.unit_of_row]])",
        "return np.sort(self.rows[units])",
        "tests/data/test_partitions.py -k group",
    ),
    "patients of two sites that are one": Mutant(
        D + "domains.py",
        "group_count += int(samples.groups.max()) + 1",
        "group_count += 0",
        "tests/data/test_domains.py -k groups",
    ),
    "a sample that no client gets": Mutant(
        D + "partition/partitioners.py",
        "return np.array_split(np.arange(len(pool)), spec.clients)",
        "return np.array_split(np.arange(len(pool) - 1), spec.clients)",
        "tests/data/test_partitions.py",
    ),
    "validation samples that are tested on": Mutant(
        D + "partition/splits.py",
        "in_validation = ~in_test & (rank < (test + validation)[codes])",
        "in_validation = rank < (test + validation)[codes]",
        "tests/data/test_partitions.py",
    ),
    "a test set copied into training": Mutant(
        D + "partition/splits.py",
        "counts[where] == 1",
        "counts[where] >= 1",
        "tests/data/test_client_data.py -k copy",
    ),
    "numbers scaled by test samples too": Mutant(
        D + "client_data.py",
        "standard(data.inputs[train][:, numbers])",
        "standard(np.asarray(data.inputs)[:, numbers])",
        "tests/data/test_tables.py",
    ),
    "a changed file that is read from the cache": Mutant(
        D + "forms/folders.py",
        "change = status.st_size, status.st_mtime_ns",
        "change = 0, 0",
        "tests/data/test_cache.py -k csv",
    ),
    "features of one sample with the label of another": Mutant(
        D + "domains.py",
        "numbers[samples.labels]",
        "numbers[samples.labels[::-1]]",
        "tests/data/test_domains.py",
    ),
    "classes of domains matched by number": Mutant(
        D + "domains.py",
        "np.array([class_names.index(name) for name in samples.class_names], np.int64)",
        "np.arange(len(class_names))",
        "tests/data/test_domains.py",
    ),
    "a private row that refuses the others": Mutant(
        D + "forms/images.py",
        "if independent and not _is_readable(stored):",
        "if independent and stored is None:",
        "tests/data/test_independent_rows.py",
    ),
    "an image that lies on its side": Mutant(
        D + "forms/images.py",
        "else pixels.transpose(2, 0, 1)",
        "else pixels.transpose(2, 1, 0)",
        "tests/data/test_images.py",
    ),
    "half of an entry taken for the whole": Mutant(
        D + "cache.py",
        "os.rename(partial, folder)",
        'shutil.copytree(partial, folder, ignore=lambda *_: ["labels.npy"])',
        "tests/data/test_cache.py",
    ),
    # --- nginx before a SuperLink
    "nginx for paths that begin well": Mutant(
        "deploy/nginx/protosphere-gate.conf",
        "confirm-message-received)$",
        "confirm-message-received)",
        "tests/integration/test_nginx.py -k only",
    ),
    "nginx that passes on every header": Mutant(
        "deploy/nginx/protosphere-gate.conf",
        "proxy_pass_request_headers off;",
        "proxy_pass_request_headers on;",
        "tests/integration/test_nginx.py -k only",
    ),
    "nginx that keeps messages in files": Mutant(
        "deploy/nginx/protosphere-gate.conf",
        "proxy_request_buffering off;",
        "proxy_request_buffering on;",
        "tests/integration/test_nginx.py -k disk",
    ),
    # --- what a SuperLink leaves
    "messages that stay in a SuperLink's database": Mutant(
        "deploy/with_superexec.py",
        "stack.callback(sweep, database)",
        "pass",
        "tests/deploy/test_with_superexec.py -k clear",
    ),
    # --- comparison: which of several methods is better
    "Holm's correction forgotten": Mutant(
        COMPARISON + "paired.py",
        "LEVEL / (len(p_values) - place)",
        "LEVEL",
        "tests/comparison/test_paired.py",
    ),
    "Bonferroni's correction in Holm's place": Mutant(
        COMPARISON + "paired.py",
        "LEVEL / (len(p_values) - place)",
        "LEVEL / len(p_values)",
        "tests/comparison/test_paired.py",
    ),
    "Holm's procedure that goes on after what it keeps": Mutant(
        COMPARISON + "paired.py",
        "            break\n        result[number] = True",
        "            continue\n        result[number] = True",
        "tests/comparison/test_paired.py",
    ),
    "a test of one side": Mutant(
        COMPARISON + "paired.py",
        "test = ttest_1samp(gaps, 0)",
        'test = ttest_1samp(gaps, 0, alternative="greater")',
        "tests/comparison/test_paired.py",
    ),
    "an interval of 90 %": Mutant(
        COMPARISON + "paired.py",
        "confidence_interval(CONFIDENCE)",
        "confidence_interval(0.9)",
        "tests/comparison/test_paired.py",
    ),
    "differences to a figure that is not zero": Mutant(
        COMPARISON + "paired.py",
        "test = ttest_1samp(gaps, 0)",
        "test = ttest_1samp(gaps, gaps.iloc[0])",
        "tests/comparison/test_paired.py",
    ),
    "methods paired by place, not by seed": Mutant(
        COMPARISON + "paired.py",
        "(pd.Series(figures, dtype=float) - pd.Series(other, dtype=float)).dropna()",
        "(pd.Series([*figures.values()], dtype=float) - pd.Series([*other.values()], dtype=float)).dropna()",
        "tests/comparison/test_paired.py",
    ),
    "Holm's correction over all rows together": Mutant(
        COMPARISON + "frame.py",
        'groupby(["row", "metric"]):',
        'groupby(["metric"]):',
        "tests/comparison/test_frame.py",
    ),
    "all differences in bold": Mutant(
        COMPARISON + "tables.py",
        "_some_seeds(line.seeds, seeds), line.significant is True",
        "_some_seeds(line.seeds, seeds), line.significant is not None",
        "tests/comparison/test_tables.py",
    ),
    "methods counted that no table shows": Mutant(
        COMPARISON + "report.py",
        "_page(once, frame,",
        "_page(spec, frame,",
        "tests/comparison/test_variants.py",
    ),
    "a value chosen by test samples": Mutant(
        COMPARISON + "frame.py",
        "summarise(runs_of(trials, row.label, entry.label)[VALIDATION])",
        'summarise(runs_of(trials, row.label, entry.label)[f"metric: {spec.metrics[0]}"])',
        "tests/comparison/test_variants.py",
    ),
    "the worst value chosen": Mutant(
        COMPARISON + "frame.py",
        "best = max(means.values())",
        "best = min(means.values())",
        "tests/comparison/test_variants.py",
    ),
    "a value chosen while a seed of another is missing": Mutant(
        COMPARISON + "frame.py",
        "if accuracy and accuracy.seeds == seeds",
        "if accuracy",
        "tests/comparison/test_variants.py",
    ),
    "± of a population": Mutant(
        COMPARISON + "frame.py",
        "statistics.stdev(numbers) if len(numbers)",
        "statistics.pstdev(numbers) if len(numbers)",
        "tests/comparison/test_frame.py",
    ),
    "another majority class than the figure's": Mutant(
        COMPARISON + "spec.py",
        'MAJORITY_UNWEIGHTED if self.figure.endswith("-unweighted") else MAJORITY',
        'MAJORITY if self.figure.endswith("-unweighted") else MAJORITY_UNWEIGHTED',
        "tests/comparison/test_tables.py",
    ),
    "untrained models chosen by validation": Mutant(
        COMPARISON + "frame.py",
        "means = means[means.index > 0]",
        "means = means[means.index >= 0]",
        "tests/comparison",
    ),
    "methods of a table by the alphabet": Mutant(
        COMPARISON + "tables.py",
        ".reindex(methods)",
        ".reindex(sorted(methods))",
        "tests/comparison/test_tables.py -k order",
    ),
    "a gain over the control's own exchange": Mutant(
        COMPARISON + "frame.py",
        "baseline, runs[name], control_runs[control_name]))",
        "baseline, runs[name], control_runs[name]))",
        "tests/comparison/test_tables.py",
    ),
    "a percent sign that begins a comment": Mutant(
        COMPARISON + "tables.py",
        'for letter in "&%$#_{}"',
        'for letter in "&$#_{}"',
        "tests/comparison/test_tables.py",
    ),
    "Greek letters that LaTeX's fonts lack": Mutant(
        COMPARISON + "tables.py",
        r'rf"$\{name}$" for letter, name in GREEK.items()',
        "letter for letter in GREEK",
        "tests/comparison/test_tables.py",
    ),
    "a bar that ends a Markdown cell": Mutant(
        COMPARISON + "tables.py",
        'r"[\\\\|*<`]"',
        'r"[\\\\*<`]"',
        "tests/comparison/test_tables.py",
    ),
    "rows whose cells stand under other methods": Mutant(
        COMPARISON + "tables.py",
        'wide["text"].astype(object)',
        'wide["text"].iloc[::-1].set_axis(wide.index).astype(object)',
        "tests/comparison/test_tables.py",
    ),
    "a data set before its partition": Mutant(
        COMPARISON + "trials.py",
        "return base, spec.settings, row.dataset.settings, partition, of_method, overrides",
        "return base, spec.settings, partition, row.dataset.settings, of_method, overrides",
        "tests/comparison/test_trials.py",
    ),
    "another seed than the folder's name": Mutant(
        COMPARISON + "trials.py",
        'settings | {"seed": seed}',
        'settings | {"seed": seed + 1}',
        "tests/comparison/test_trials.py",
    ),
    "a failed run taken for a finished one": Mutant(
        COMPARISON + "folder.py",
        'completed = summary["status"] == "completed"',
        "completed = True",
        "tests/comparison",
    ),
    "a run of other settings in a table": Mutant(
        COMPARISON + "folder.py",
        "if differing := difference(settings, as_of_today(trial.settings), INDIFFERENT, as_of_today):",
        "if differing := difference({}, {}, INDIFFERENT, as_of_today):",
        "tests/comparison/test_folder.py",
    ),
    # --- reports and the command line
    "a formula for a spreadsheet": Mutant(
        "protosphere/reports/frames.py",
        "if text.startswith(FORMULA) else text",
        "if text.endswith(FORMULA) else text",
        "tests/reports tests/comparison/test_frame.py",
    ),
    "markup out of a client's name": Mutant(
        "protosphere/reports/page.py",
        "return Markup(escape(one_line(",
        "return Markup((one_line(",
        "tests/reports",
    ),
    "bytes of evaluations in the bytes of training": Mutant(
        "protosphere/reports/frames.py",
        'payload = sizes["payload_up"] + sizes["payload_down"]',
        'payload = sizes["payload_up"]',
        "tests/comparison/test_frame.py tests/reports",
    ),
    "rows of a partition counted for the wrong client": Mutant(
        "protosphere/reports/label_distribution.py",
        "or counts.sum(axis=1).tolist() != rows:",
        "or counts.sum() != sum(rows):",
        "tests/reports",
    ),
    "the classifier's figures in the place of the run's own rule": Mutant(
        "protosphere/reports/frames.py",
        "rule_splits = rules.get(rule, {})",
        "rule_splits = next(iter(rules.values()), {})",
        "tests/reports tests/comparison/test_frame.py",
    ),
}
