"""Break each promise on purpose, and require that a test notices.

Each row of `BREAKS` is a plausible mistake: a check removed, an order changed, a lock dropped. The script copies the tree,
makes one mistake at a time in the copy, and runs the tests that the row names. It exits with 1 if they still pass, or if
the text to replace is not there (update the row then). ::

    .venv/bin/python scripts/break_promises.py                 # all: about 7 minutes
    .venv/bin/python scripts/break_promises.py --only seal     # rows whose text contains "seal"
    .venv/bin/python scripts/break_promises.py --check         # only whether each text is there, in a second
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "examples", "scripts", "docs", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
PRELOADED = ("h5py", "lmdb", "mongomock", "PIL.Image", "pymongo", "pytest", "torch.utils.data", "typer.testing")
HANGS = ["-o", "timeout=120", "-o", "faulthandler_timeout=130"]  # the second ends what no signal does
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", *HANGS, "-W", "ignore::pytest.PytestAssertRewriteWarning"]
LIMIT = 400  # seconds for the tests of one row


class Break(NamedTuple):
    """A mistake, and the tests that must fail of it.

    Attributes
    ----------
    promise : str
        The number of a promise, or of the group of a repair, and what the mistake breaks.
    tests : str
        Arguments of pytest; files are relative to ``tests``.
    file : str
        In ``src/storeds``.
    old, new : str
        The text, which must be there exactly once, and what replaces it.
    """

    promise: str
    tests: str
    file: str
    old: str
    new: str


# fmt: off
BREAKS = [Break(*row) for row in (
    # 1. The same samples, bit for bit, from every engine, in every mode of a DataLoader; equal ids.
    ("1: records come in the order asked for", "backends/test_backends.py -k 'TestMemory and order_of'", "backends/store.py", "list(map(by_position.__getitem__, positions))", "list(by_position.values())"),
    ("1: a record asked for twice is two copies", "backends/test_backends.py -k 'TestMemory and results_own'", "backends/store.py", "record = copy.deepcopy(record)", "pass"),
    ("1: the id is of the content, not of the store", "backends/test_interop.py -k libraries_read", "backends/writer.py",
     "self._content.update(digest)", "self._content.update(self._seals.seal(digest, position))"),
    ("1: tensors of a batch do not overlap in a slot", "batching/test_memory.py -k one_process_makes", "batching/memory.py", "self.size += -(-size // _ALIGNMENT) * _ALIGNMENT", "self.size += size // 2"),
    ("1: a StoreLoader over a Subset gives its rows", "datasets/test_dataset.py -k nested_subsets", "datasets/tree.py", "return parts(dataset.dataset, [dataset.indices[at] for at in indices])", "return parts(dataset.dataset, indices)"),
    # 2. No handle crosses a process; small pickles; one storage call a batch.
    ("2: a pickle holds no handle", "backends/test_backends.py -k 'TestLmdb and copy_of_a_used'", "backends/store.py", 'left_out = ("_ref", "_unread", "_needs_whole")', 'left_out = ("_unread", "_needs_whole")'),
    ("2: a forked child opens handles of its own", "backends/test_forks.py -k by_c_code", "backends/handles.py", "if self._pid != os.getpid():", "if False:"),
    ("2: no handle is closed under a reader", "backends/test_many.py -k threads_that", "backends/handles.py", "in self._entries.values() if not self._is_leased(entry)]", "in self._entries.values()]"),
    ("2: thousands of stores pickle small", "backends/test_many.py -k thousands", "backends/joining.py", "        _deduplicate_meta(store, shared)\n", ""),
    ("2: a selection pickles without its positions", "datasets/test_dataset.py -k selected_positions", "records/index.py", '{**self.__dict__, "_positions": None}', "{**self.__dict__}"),
    ("2: a child keeps the batch that it inherited", "batching/test_memory.py -k training_process_keeps", "batching/memory.py", "        pool.drop_used()\n", "        pass\n"),
    # 3. Records are verified and bound to their place; atomic publishing; resuming; two writers.
    ("3: a batch is compared with its seals", "backends/test_seals.py -k 'changed or swapped'", "backends/store.py", "has_faults = not verifier.seals.match(rows.digests, rows.seals, positions)", "has_faults = False"),
    ("3: a record of another store is refused", "backends/test_seals.py -k grafted", "records/codec.py", "return _MISMATCH", "return None"),
    ("3: a column read alone is compared", "ops/test_ops.py backends/test_seals.py -k 'columns_with or changed_label'", "records/verifier.py", "if not self._matches(part, [data]):", "if False:"),
    ("3: a target that appears meanwhile stays", "backends/test_staging.py -k appears_meanwhile", "backends/staging.py", "        if replace:\n", "        if True:\n"),
    ("3: two writers never mix: files", "backends/test_staging.py -k second_writer", "backends/staging.py", "            _take(descriptor)\n", ""),
    ("3: two writers never mix: MongoDB", "backends/test_two_writers.py -k 'lost_its_write'", "backends/mongodb/sink.py", '{"$set": values}).matched_count:', '{"$set": values}, upsert=True):'),
    ("3: a writer resumes only with the plan that it began with", "backends/test_resume.py", "backends/writer.py", "if plan != self._plan:", "if False:"),
    ("3: what came after the last note is forgotten: HDF5", "backends/test_hdf5_rows.py -k torn", "backends/hdf5/sink.py", "log.truncate(self._end)", "pass"),
    # 4. No damaged picture is silent; whole ones are untouched; policies.
    ("4: a picture without verdict is decoded strictly", "readers/test_verdict_reading.py -k 'untouched'", "pictures/decoders.py",
     "fastdct=shortcuts, fastupsample=shortcuts, strict=True\n    )", "fastdct=shortcuts, fastupsample=shortcuts, strict=False\n    )"),
    ("4: less than min_recovered is refused", "readers/test_verdict_reading.py ops/test_repair.py -k 'report_damage or was_repaired or looks'", "pictures/decode.py",
     "not damage.recovered >= self.min_recovered", "False"),
    ("4: bytes missing inside are never repaired", "pictures/test_verdicts.py -k missing_in_the_middle", "pictures/verdict.py",
     'return Verdict("corrupt_data", 0.0, problem)\n', 'return Verdict("truncated_scan", 0.998, problem)\n'),
    ("4: the share of a cut file is never above the truth", "pictures/test_verdicts.py -k share", "pictures/verdict.py", "share = before + (share - before) * min(agreed, units - 1) / units", "pass"),
    ("4: libjpeg's fast decoder passes over invalid codes", "pictures/test_verdicts.py -k finding_of", "pictures/verdict.py", "message = _decode(_slowed(blob, found), found)\n", "message = _decode(blob, found)\n"),
    ("4: the chunks of a PNG are checked", "pictures/test_formats.py -k changed_byte", "pictures/formats.py", "if zlib.crc32(view[at + 4 : end - 4]) !=", "if False and 0 !="),
    ("4: max_bad stops the run", "datasets/test_policy.py -k as_many", "datasets/counters.py", "            if bad > limit:\n", "            if bad > limit + 1:\n"),
    ("4: an error names the record's key", "datasets/test_policy.py -k has_the_key", "datasets/pipeline.py", "named = self._with_key(sample)", "named = sample"),
    ("4: bad samples of joined datasets are skipped, as the policy says", "datasets/test_policy.py -k joined_datasets_skips", "datasets/reading.py",
     "_joined(found, ask._replace(fill=False))", "_joined(found, ask)"),
    # 5. Exact crops decode only what they need.
    ("5: a part has the pixels that smoothing reads", "readers/test_crops.py -k every_pixel", "pictures/cuts.py", "_MARGIN = 4", "_MARGIN = 0"),
    ("5: lying restart markers are noticed", "pictures/test_restarts.py -k out_of_order", "pictures/cuts.py", "codes[:-1] != _restart_codes(count - 1)", "False"),
    ("5: a crop decodes only a part", "readers/test_crops.py -k decodes_only", "pictures/decode.py", "            if windows is not None:\n", "            if False:\n"),
    ("5: only a picture known to be whole is decoded in part", "readers/test_crops.py pictures/test_never_silent.py -k 'damaged_pictures or foreign or hides_no'", "pictures/decode.py",
     "is_whole=is_known", "is_whole=True"),
    # 6. A sample depends on (seed, epoch, index) alone; resuming on any number of ranks.
    ("6: randomness depends on the epoch", "datasets/test_dataset.py -k function_of_seed", "protocols.py", "{self.seed}/{self.epoch}/{self.index}", "{self.seed}/{self.index}"),
    ("6: randomness depends on the index", "datasets/test_dataset.py -k function_of_seed", "protocols.py", "{self.seed}/{self.epoch}/{self.index}", "{self.seed}/{self.epoch}"),
    ("6: the order depends on the epoch", "loaders/test_epochs.py -k new_order", "_utils/permutation.py", 'order", 1, self.seed, self.epoch)', 'order", 1, self.seed)'),
    ("6: prefetched batches do not count", "datasets/test_epoch_programs.py -k workers", "loaders/position.py", "self.drawn if self.batches is None else self._received", "self.drawn"),
    ("6: resuming skips what all ranks consumed", "loaders/test_sampling.py -k whatever_the_worlds", "loaders/position.py", "progress.start + progress.consumed * progress.num_replicas", "progress.start + progress.consumed"),
    ("6: the state of another store is refused", "loaders/test_sampling.py -k 'of_another_sampler or of_other_records'", "loaders/agreement.py", "if saved != value and not unknown:", "if False:"),
    ("6: foreign transforms are seeded by sample", "transforms/test_calls.py -k reproducible", "transforms/binding.py", "            np.random.seed(seeds[1] & 0xFFFFFFFF)\n", ""),
    # 7. Masks, boxes and keypoints move with their image.
    ("7: boxes shift with the window", "transforms/test_joint.py -k all_elements_move", "transforms/operations.py", "return scale_x, -left * scale_x,", "return scale_x, -left,"),
    ("7: a flip swaps pairs of keypoints", "transforms/test_joint.py -k swaps_pairs", "transforms/operations.py", "False\n    pairs: Sequence[Sequence[int]] = ()", "False\n    pairs = ()"),
    ("7: labels go with dropped boxes", "transforms/test_joint.py -k 'dropped'", "transforms/samples.py", "  self._drop_rows(name, kept)\n ", "  pass\n "),
    ("7: keypoints count from the centre of a pixel", "transforms/test_joint.py -k swaps_pairs", "transforms/samples.py", "points[..., :2] -= 0.5", "pass"),
    # 8. Pack, convert, verify, repair, export, info, bench.
    ("8: pack resumes where its note says", "ops/test_resuming.py -k ends_early", "ops/packing/__init__.py", "        self.state.next = numbers.stop\n", "        self.state.next = numbers.stop - 1\n"),
    ("8: verify compares columns with records", "ops/test_ops.py -k columns_and_id", "ops/verifying/checks.py", "            if not _same(column[position], record[name]):\n", "            if False:\n"),
    ("8: verify compares the content id", "ops/test_ops.py -k columns_and_id", "ops/verifying/__init__.py", "if content is not None and content.finish(meta.fields, meta.attrs) != meta.id:", "if False:"),
    ("8: verify outlives a crash of its child", "ops/test_verify_damage.py -k crash_the_reader", "ops/verifying/workers.py", "raise ChildDied(self._reap()) from None", "raise"),
    ("8: repair keeps bytes of which nothing is left", "ops/test_repair.py", "ops/pictures.py", "not verdict.is_whole and verdict.recovered:\n", "not verdict.is_whole:\n"),
    ("8: an export is one atomic step", "backends/test_crashes.py -k an_export_killed", "ops/exporting.py", 'target.with_name(f".{target.name}.{secrets.token_hex(4)}{_PARTIAL}")', "target"),
    ("8: classes are divided by largest remainder", "ops/test_pack.py -k largest_remainders", "ops/packing/splits.py", "key=lambda number: counts[number] - quotas[number]", "key=lambda number: number"),
    # 9. Nothing is silently partial.
    ("9: unread datasets of HDF5 are reported", "layouts/test_foreign_hdf5.py -k is_reported", "layouts/hdf5/records.py",
     '[f"{member.path} ({describe(member.dataset)})" for member in missed] + [', "["),
    ("9: unread entries of LMDB are reported", "layouts/test_foreign_lmdb.py -k 'reported or unread'", "layouts/lmdb/tree.py", "unread_entries(reader, entries), *left", "left"),
    # 10. Speed, as far as a count shows it.
    ("10: a batch is one storage call", "datasets/test_modes.py -k 'one_storage_call_a_batch and memory'", "readers/rows.py",
     "iter(view.get_many([at for positions in located for at in positions if at not in known], stored))", "iter([view.get_many([at], stored)[0] for positions in located for at in positions])"),
    ("10: importing storeds loads no engine and not torch", "test_public.py -k loads_no", "__init__.py", "from typing import TYPE_CHECKING\n", "from typing import TYPE_CHECKING\n\nimport torch\n"),
    ("10: arrays skip samples only without settings of collate", "batching/test_batching.py -k fixed_shape", "loaders/worker.py", "as_columns=is_batch and self.collate_fn is collate", "as_columns=is_batch"),
    # 11. The storage format does not change.
    ("11: an older store has its id", "backends/test_old_stores.py -k verify", "records/codec.py", '{"attrs": dict(attrs), "fields"', '{"attributes": dict(attrs), "fields"'),
    ("11: an older store has its seals", "backends/test_old_stores.py -k hdf5", "records/codec.py", 'SEAL = "_seal"', 'SEAL = "_sealed"'),
    ("11: an older store has its parts", "backends/test_old_stores.py -k parts", "backends/mongodb/documents.py", "{position:016x}/{name}/{number}", "{position:016x}/{number}/{name}"),
    # 25. Repairs: engines and pictures.
    ("25: pack refuses its source as the target", "ops/test_own_target.py -k 'inside_its_source'", "ops/packing/__init__.py", "        check_distinct(store, url)\n", "        pass\n"),
    ("25: wrong attrs delete nothing", "backends/test_backends.py -k 'TestMemory and class_id'", "backends/writer.py", "elif self._sent is None:", "elif error is not None:"),
    ("25: a lock is not lost through a link", "backends/test_staging.py -k second_writer", "backends/staging.py", "F_OFD_SETLK, fcntl.F_WRLCK)\n        except", "F_SETLK, fcntl.F_WRLCK)\n        except"),
    ("25: a fork waits for reading threads", "backends/test_backends.py -k 'TestLmdb and forked_while_threads'", "backends/handles.py", "while any(not lease.ref.opener.may_wait and", "while False and any(not lease.ref.opener.may_wait and"),
    ("25: a forked signal handler waits for no lease of its own thread", "backends/test_forks.py -k 'child_reads and lmdb-0'", "backends/handles.py",
     "_PATIENCE if self._has_leases(thread) else None", "None"),
    ("25: a whole CMYK JPEG is whole", "pictures/test_verdicts.py -k whole_picture", "pictures/verdict.py", "return _decode_by_pillow(blob, found) if message.startswith(_REFUSALS) else message", "return message"),
    ("25: a file cut short under an HDF5 reader is an error, not SIGBUS", "backends/test_hdf5_rows.py -k 'under_a_reader'", "backends/hdf5/rows.py",
     "found = list(map(os.pread, itertools.repeat(self._descriptor), sizes, places))", "file = self.__dict__.setdefault('_map', __import__('mmap').mmap(self._descriptor, 0, prot=1)); found = [file[a : a + n] for a, n in zip(places, sizes)]"),
    ("25: a bad sector is an error of its records", "backends/test_hdf5_rows.py -k bad_sector", "backends/hdf5/rows.py", "except OSError:\n", "except IndexError:\n"),
    ("25: HDF5 opens again when it was replaced meanwhile", "backends/test_hdf5_rows.py -k two_steps", "backends/hdf5/reading.py", "between two steps\n            return self._open()\n", "between two steps\n            raise\n"),
    ("25: a cold batch of LMDB is loaded at once", "backends/test_cold_reads.py -k lmdb", "backends/lmdb/reading.py", "        if self._is_cold:\n", "        if False:\n"),
    ("25: foreign LMDB of large values reads ahead", "layouts/test_foreign_lmdb.py -k reads_ahead", "layouts/lmdb/environment.py",
     "readahead is None and value_size(found, self.settings.database) > _LARGE", "False"),
    ("25: a damaged record of LMDB spoils no other, in training and verify", "datasets/test_bad_records.py -k 'bad_lmdb or lmdbs'", "backends/lmdb/reading.py",
     "return self._read_each(positions)", "return Rows([Fault('it is damaged')] * len(positions), FAULT_DIGEST * len(positions), FAULT_SEAL * len(positions))"),
    ("25: repr of a config hides passwords in keys", "config/test_config.py -k 'password or repr'", "_utils/settings.py", "redact(key) if isinstance(key, str) else key:", "key:"),
    ("25: JSON output escapes U+009B", "cli/test_cli.py -k control", "cli/app.py", "if not text.isprintable():", "if False:"),
    ("25: backends of one file with other options share it", "backends/test_bad_stores.py -k 'live_backends'", "backends/file_stores.py",
     "return self.engine, status.st_dev, status.st_ino\n", "return self.engine, status.st_dev, status.st_ino, self.settings\n"),
    ("25: a polygon of 400 digits is a bad record", "records/test_segmentations.py readers/test_sample_reader.py -k 'bad_rows or refuse_the_same'", "records/segmentations.py",
     'None and numbers.dtype.kind in "iuf" and numbers.ndim == 1', "None"),
    ("25: opening parses the meta once", "backends/test_bad_stores.py -k parses_the_meta", "backends/store.py", "meta = self._opened(handle) if opener.is_current(handle) else None", "meta = self._opened(handle) and None"),
    ("25: a batch saves the writer's state once", "backends/test_resume.py", "backends/writer.py",
     "for added in batch], self._state_text(note))\n", "for added in batch], self._state_text(note))\n            self._sink.put(self.count, [], self._state_text(note))\n"),
    ("25: the writer refuses boxes beyond float32", "readers/test_sample_reader.py backends/test_stored_roles.py -k 'one_limit or bad_value'", "records/annotations.py", "float(np.finfo(np.float32).max)", "1e308"),
    ("25: no property has a lock that a fork copies locked", "test_public.py -k copy_locked", "pictures/cuts.py", "    @property\n    def _starts", "    @__import__('functools').cached_property\n    def _starts"),
    # 26. Repairs: stores of other tools.
    ("26: a description of LMDB may be an array", "layouts/test_foreign_lmdb.py -k description_may", "layouts/lmdb/entries.py", "elif content is _UNKNOWN or", "elif content == _UNKNOWN or"),
    ("26: labels of GridFS may be of any type", "layouts/test_foreign_mongodb.py -k labels", "layouts/mongodb/documents.py", "if self.as_text and isinstance(found, _AS_TEXT):", "if False:"),
    ("26: all revisions of a file have its label", "layouts/test_foreign_mongodb.py -k 'labels or layout_reads'", "layouts/mongodb/gridfs.py", "places.setdefault(value, []).append(at)", "places[value] = [at]"),
    ("26: datasets beyond the 64th are read", "layouts/test_foreign_hdf5.py", "layouts/hdf5/files.py", "MOST_WALKED = 1024", "MOST_WALKED = 64"),
    ("26: an index behind an external link is renewed", "layouts/test_foreign_hdf5.py -k renewed", "layouts/hdf5/records.py", "if files.changed(facts.files):", "if False:"),
    ("26: cache_bytes keeps chunks of videos", "layouts/test_hdf5_chunks.py -k videos", "layouts/hdf5/chunks.py", "if not self._keeps:", "if True:"),
    ("26: a split of numbers is named by a number", "config/test_config.py -k named_by_a_number", "config/__init__.py", "{str(name): table for name, table in splits.items()}", "dict(splits)"),
    ("26: where of a split may hold numbers", "config/test_config.py -k 'split_of_numbers or combined'", "config/splits.py", "name not in map(str, taken", "name not in map(lambda x: x, taken"),
    ("26: a damaged array in JSON is a bad record", "layouts/test_foreign_lmdb.py -k damaged_array", "values/codecs.py", 'raise CodecError(f"its JSON is damaged: an array ({error})") from None', "raise"),
    ("26: an error keeps no tracebacks", "layouts/test_hdf5_chunks.py -k tracebacks", "layouts/hdf5/values.py", "raise ValueError(_DAMAGED)", "raise globals().setdefault('_ERROR', ValueError(_DAMAGED))"),
    ("26: names of MongoDB fields are in lower case", "layouts/test_foreign_mongodb.py -k lower_case", "values/names.py", "text.lower()", "text"),
    ("26: images and labels open by name", "layouts/test_foreign_hdf5.py -k 'open_by_name'", "layouts/hdf5/scan.py", 'return replace(field, role="image") if is_picture else field', "return field"),
    ("26: groups of images are no videos without a word", "layouts/test_foreign_hdf5.py -k 'lines'", "layouts/hdf5/recognising.py",
     "if groups and not datasets:\n        name = next((name for name in FRAMES if", "if groups and not datasets:\n        name = next((name for name in (*FRAMES, 'images') if"),
    ("26: lines to paste open the store", "layouts/test_layouts.py -k 'names_lines_that_work'", "layouts/explain.py", 'f", {name}={value!r}"', 'f", {name}s={value!r}"'),
    ("26: datasets take options of layouts as keywords", "layouts/test_foreign_hdf5.py -k urls_and_configs", "datasets/settings.py", 'return {**merged, "options": {**options, **of_store}}', "return merged"),
    ("26: a folder of HDF5 files names the pattern", "layouts/test_foreign_hdf5.py -k names_the_pattern", "backends/opening.py", "path + '/*' + suffix!r} reads", "path + '/' + suffix!r} reads"),
    # 27. Repairs: pack, export, command line.
    ("27: a data.yaml of supervision, without splits, is read", "ops/test_sources.py -k supervision", "formats/yolo/describing.py", "        parts = _parts_in(base)\n", "        raise ConfigError(base)\n"),
    ("27: NaN is no share of a split", "ops/test_pack.py -k wrong_option", "ops/packing/__init__.py",
     "not (min(shares.values()) >= 0 and math.isclose(sum(shares.values()), 1, abs_tol=1e-6)", "(min(shares.values()) < 0 or abs(sum(shares.values()) - 1) > 1e-6"),
    ("27: shares may be NumPy's numbers", "ops/test_pack.py -k 'key_alone or largest or class'", "ops/packing/__init__.py", "{name: float(share) for name, share in", "{name: share for name, share in"),
    ("27: items left out are not called kept", "ops/test_broken_items.py -k says_what", "ops/packing/__init__.py", "kept=record is not None)", 'kept=on_bad == "keep")'),
    ("27: one more member spoils no tar", "ops/test_sources.py -k 'one and more'", "layouts/files/tars.py", 'extensions is None and 2 * counts[name] <= counts["image"]', "False"),
    ("27: a broken JSON file stops no pack", "ops/test_coco.py -k stop_no_pack", "layouts/files/detect.py", "  is_object ", "  json.loads(ends)\n    is_object "),
    ("27: a JSON file is looked at, not read whole", "ops/test_coco.py -k by_its_ends", "layouts/files/detect.py", "            ends = file.read(_LOOKED_AT)\n", "            ends = file.read()\n"),
    ("27: a record that ended a process is not read again", "ops/test_contact_sheet.py -k worst_thirty", "ops/verifying/__init__.py", 'not in ("column", "crash")', 'not in ("column",)'),
    ("27: every value of a page is text", "ops/test_show.py -k hostile", "ops/showing/__init__.py", "autoescape=True", "autoescape=False"),
    ("27: boxes lie on what they mark", "ops/test_show.py -k overlays", "ops/showing/page.html", "{{ 100 * (right - left) }}%", "{{ 100 * right }}%"),
    ("27: a key that is cut is not copied", "ops/test_show.py -k hostile", "ops/showing/page.js", "marked.filter((record) => record.exact)", "marked"),
    ("27: equal names stay apart in an export", "ops/test_export.py -k equal_names", "formats/writing.py", "        while self._is_used(name):\n", "        if self._is_used(name):\n"),
    ("27: a store is read in batches", "ops/test_folders.py -k 'backend_is_a_source'", "formats/stores.py", "_BATCH, _COLUMNS = 64, 1024", "_BATCH, _COLUMNS = 1, 1"),
    ("27: a repeated line of YOLO is left out", "ops/test_sources.py -k 'YOLO and boxes'", "formats/yolo/labels.py", "self._record(list(found))", "self._record([*found, *list(found)[: count - len(found)]])"),
    ("27: arrays of booleans are inline in an export", "ops/test_same_id.py -k everything", "formats/folder/read.py", 'in ("i", "u", "f", "b")', 'in ("i", "u", "f")'),
    ("27: append takes one record too", "backends/test_backends.py -k one_record", "backends/writer.py", "if isinstance(records, Mapping):", "if False:"),
    ("27: tensors and NumPy's scalars are labels", "backends/test_backends.py -k one_record", "records/codec.py", 'return value.item() if getattr(value, "ndim", None) == 0 else value', "return value"),
    ("27: pixels for an image say how to encode them", "records/test_record.py -k refusal", "records/codec.py", '    if field.kind == "image":\n', "    if False:\n"),
    ("27: an unknown kind has a suggestion", "ops/test_sources.py -k refused", "formats/opening.py", "format: Format = registry.FORMATS.get(kind)", "format: Format = dict.fromkeys(registry.FORMATS.names())[kind]"),
    ("27: messages name flags that exist", "cli/test_hints.py", "backends/writer.py", "pass overwrite=True (--overwrite); with", "pass overwrite=True (--replace); with"),
    ("27: the source is found by file identity", "ops/test_own_target.py -k link_to", "ops/copy.py", "return os.path.samefile(file_path(source.url)[0], file_path(dst_url)[0])", "return source.url == dst_url"),
    ("27: a selection of the target is the target", "ops/test_own_target.py -k inside_its", "ops/copy.py", "    for member in stores_in(source):", "    for member in [source]:"),
    ("27: an export keeps the verdict of a repaired picture", "ops/test_same_id.py", "formats/folder/write.py", "damage_to_row(record, self._fields)", "{}"),
    ("27: a verdict is not that of a replaced picture", "ops/test_export_folder.py -k replaced_is_examined", "formats/folder/read.py", " if is_same else None", ""),
    ("27: formats without verdicts say so", "ops/test_export.py -k room_for_damage", "ops/exporting.py", "notes = (*notes, *_notes_on_damage(backend, format))", "pass"),
    ("27: validation in data.yaml is val", "ops/test_sources.py -k 'YOLO and boxes'", "formats/yolo/describing.py", "if yaml.validation and not yaml.val:", "if False:"),
    ("27: VOC takes boxes as stored, as masks", "ops/test_voc.py -k 'taken_as_stored'", "formats/voc.py", "is_turned = orientation > 4 and stored != swapped == size", "is_turned = orientation > 1"),
    ("27: masks may be GIF", "ops/test_folders.py -k gif", "layouts/files/walk.py", '*(".gif", ".apng",', '*(".apng",'),
    # 28. Repairs: loading and transforms.
    ("28: an assigned transform holds", "datasets/test_assigned.py -k 'next_sample'", "datasets/map_dataset.py", "_change(_transform=build_transforms(self._with_stats(value))", "_transform = build_transforms(self._with_stats(value)"),
    ("28: a wrong argument of a loader has a suggestion", "loaders/test_stats.py -k refuses", "loaders/settings.py", "{name: value for name, value in given.items() if name not in objects}", "{name: value for name, value in given.items() if name in cls.__struct_fields__}"),
    ("41: an argument equal to the default replaces a setting", "config/test_settings.py -k equal_to_the_default", "datasets/settings.py", "url.merged(structs.asdict(url), arguments)", "url.merged(structs.asdict(url), {n: v for n, v in arguments.items() if v})"),
    ("41: persistent workers refuse an old setting", "config/test_settings.py -k refuse_to_use", "datasets/epoch.py", "return 0 < turn <= epoch.turn", "return False"),
    ("41: an option of a split replaces the same one alone", "config/test_settings.py -k replaces_the_same_one", "datasets/settings.py", 'merged.get("options") or {}', 'own.get("options") or {}'),
    ("28: where takes class names", "datasets/test_dataset.py -k class_names", "backends/selecting.py", "return [_class_number(name, value, classes or ()) for value in wanted]", "return list(wanted)"),
    ("28: a function is no value of where", "datasets/test_dataset.py -k class_names", "backends/selecting.py", "    if callable(value):\n", "    if False:\n"),
    ("28: a loader shows what it is", "loaders/test_stats.py -k shows", "loaders/loader.py", "    def __repr__(self) -> str:\n        arguments", "    def _shown(self) -> str:\n        arguments"),
    ("28: dir(storeds) has public names", "test_public.py -k 'promised or lazy'", "__init__.py", "def __dir__()", "def _dir()"),
    ("28: a subclass of ToTensor and Normalize is called", "transforms/test_subclasses.py", "transforms/binding.py",
     "type(transform) is Normalize and joined and type(joined[-1]) is ToTensor", "isinstance(transform, Normalize) and joined and isinstance(joined[-1], ToTensor)"),
    ("28: a subclass of Resize in transforms= is called", "transforms/test_subclasses.py", "transforms/samples.py", ' and called_in.startswith("storeds.")', ""),
    ("28: no crop leaves a box without a width", "transforms/test_joint.py -k without_a_width", "transforms/coordinates.py", "_LEAST = 0.001", "_LEAST = 0.0"),
    ("28: max_bad holds for loaders at different epochs", "datasets/test_policy.py -k different_epochs", "datasets/counters.py", "_PASSES = 8", "_PASSES = 1"),
    ("28: declarations decide about the structure of batches", "loaders/test_sample_batches.py -k declarations", "batching/roles.py", 'if fields[name].kind == "json" and name not in ways', "if False"),
    ("28: joined datasets of different seeds have a seed", "loaders/test_sampling.py -k seed_of_the_order", "loaders/position.py",
     "return seeds[0] if len(set(seeds)) == 1 else xxhash", "return seeds[0] if len(set(seeds)) == 1 else None and xxhash"),
    ("28: a default device does not matter", "transforms/test_joint.py -k default_device", "transforms/images.py", 'return torch.empty(1, device="cpu").uniform_', "return torch.empty(1).uniform_"),
    ("28: a worker does not write to memory that is held", "batching/test_memory.py -k 'refers_to_a_part and plain'", "batching/buffers.py", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
    ("28: a slot is not used while a collate function keeps its batch", "batching/test_memory.py -k may_keep_change", "batching/buffers.py", "        if self.is_used:\n            return False\n        _close_all", "        _close_all"),
    ("28: an error of a worker gives its slot back", "batching/test_memory.py -k 'gives_its_slots_back and sample and True'", "loaders/worker.py", "PackedBatch(slot, 0, Failure(error, worker.id))", "Failure(error, worker.id)"),
    ("28: a batch does a tail only if its datasets have it", "batching/test_tails.py -k 'whole_samples and joined'", "datasets/pipeline.py", "known, whole=ask.tails != self.tails)", "known, whole=False)"),
    ("28: a transform assigned during a pass has its own tail", "batching/test_tails.py -k assigned_during", "loaders/worker.py", "            self.fit()\n        blocks", "            pass\n        blocks"),
    ("28: a tail divides before it normalises", "transforms/test_pixels.py -k bits_of_both", "transforms/tail.py", "out.copy_(image).div_(255)", "out.copy_(image).mul_(1 / 255)"),
    ("28: a slot is not used while its batch is held", "batching/test_memory.py -k 'refers_to_a_part'", "batching/memory.py", "not self.is_requested and not self.is_used", "not self.is_requested"),
    ("28: loaders side by side keep their epochs", "loaders/test_epochs.py -k side_by_side", "loaders/worker.py", "            asked.epoch,\n", "            None,\n"),
    ("28: collate_detection names fields= of the dataset", "batching/test_samples.py -k detection_says", "batching/detection.py", "(StoreDataset(…, fields=[…])), rename", "(fields=[…]), rename"),
    ("28: the hint for boxes without a role is boxes", "transforms/test_joint.py -k 'would_not_move'", "transforms/alignment.py", 'likely = "boxes" if is_boxes else', 'likely = "mask" if is_boxes else'),
    ("28: a record known to be bad is not read again", "backends/test_batch_arrays.py -k known_to_be_bad", "datasets/map_dataset.py", "                known = error  # the pipeline", "                pass  # the pipeline"),
    # Folders and tar shards as stores.
    ("files: a changed folder is noticed", "layouts/test_files.py -k noticed", "layouts/files/listing.py", "return listed if listed is not None and listed.is_current else None", "return listed"),
    ("files: a list is made once", "layouts/test_files.py -k noticed", "layouts/files/listing.py", "modified + _SETTLED < begun", "modified < 0"),
    ("files: a worker reads the rows that were opened", "layouts/test_files.py -k noticed", "layouts/files/reading.py", "self.meta.build if self._listed.state == self.found.plan else self._listed.build", "self.meta.build"),
    ("files: a shard that is cut is a finding", "layouts/test_files.py -k is_a_finding", "ops/verifying/__init__.py", "        report.findings[:0] = [Finding(", "        report.notes[:0] = [Finding("),
    ("files: a copy leaves out no shard by itself", "layouts/test_files.py -k is_a_finding", "ops/copying.py", 'if faults and self.on_bad == "raise":', "if False:"),
    ("files: a changed shard is no record", "layouts/test_files.py -k vanishes_later", "layouts/files/rows.py", "(status.st_size, status.st_mtime_ns) != self.state[2:]", "False"),
    ("files: a folder that is gone is unavailable", "layouts/test_files.py -k vanishes_later", "layouts/files/reading.py", "if not os.path.isdir(top):", "if False:"),
    ("files: masks keep their class ids in names", "layouts/test_files.py -k everything", "layouts/files/listing.py", 'if self.fields[name].role != "mask":', "if True:"),
    ("files: other folders beside masks are asked about", "ops/test_sources.py -k refused", "layouts/files/detect.py", "is_named and inside == read", "is_named"),
    # What to train on: quotas, weights, batches, folds and windows.
    ("plan: drop_last of a loader reaches its sampler", "loaders/test_drop_last.py -k each_others_state", "loaders/loader.py", 'drop_last=chosen.drop_last,\n                batch', 'drop_last=False,\n                batch'),
    ("plan: groups leave out short batches", "loaders/test_drop_last.py -k short_ones", "loaders/plan.py", "batches[np.diff(bounds) == self.batch_size]", "batches[np.diff(bounds) > 0]"),
    ("position: a pass follows the one that began last", "loaders/test_position.py -k test_1_and_3", "loaders/position.py", "        return last.epoch + 1, 0\n", "        return last.epoch + last.is_over, 0\n"),
    ("position: a call on a dataset is noticed", "loaders/test_position.py -k test_4", "loaders/position.py", "if turn != self._turn:", "if False:"),
    ("position: the datasets' own call is not a user's", "loaders/test_position.py -k pass_the_call_on", "loaders/position.py", "        self._turn, _ = self._datasets.request  # of the", "        # of the"),
    ("position: less than a batch is no rest", "loaders/test_position.py -k no_rest", "loaders/position.py", "if least > 0 and", "if False and"),
    ("position: the loaded epoch keeps its place", "loaders/test_position.py -k test_10", "loaders/position.py", "if epoch != self._pass.epoch:", "if True:"),
    ("position: an epoch that is set before torchdata loads applies", "loaders/test_sampling.py -k resumes_to_the_sample", "loaders/position.py", "self._is_set, self._pass.is_answer = asked is not None,", "self._is_set, self._pass.is_answer = False,"),
    ("plan: a stratum goes on where the last epoch ended", "loaders/test_plans.py -k early", "loaders/plan.py", "np.divmod(uses.ravel().astype(np.uint64) + self._used[strata], sizes)", "np.divmod(uses.ravel().astype(np.uint64), sizes)"),
    ("plan: each batch has the shares", "loaders/test_plans.py -k early", "loaders/plan.py", "dealt = turns * self._whole + number", "dealt = number * self._size + turns"),
    ("plan: a sample comes once before any comes again", "loaders/test_plans.py -k before_any", "loaders/plan.py", "+ turns - self._short[at]", "+ turns"),
    ("loader: time of a dataset of a user is outside storeds", "loaders/test_stats.py -k named_as_outside", "datasets/reading.py", 'made.work.add_time("outside", began, step', 'made.work.add_time("collate", began, step'),
    ("loader: the slowest transform is named", "loaders/test_stats.py -k without_running", "transforms/binding.py", "seconds[name] = seconds.get(name, 0.0) + now - since", "seconds[name] = seconds.get(name, 0.0) - now + since"),
    ("loader: threads end with an error", "loaders/test_threads.py -k threads_end", "loaders/loader.py", "                results.close()\n", "                pass\n"),
    ("loader: wrappers get the epoch of the pass", "loaders/test_epochs.py -k 'users_around and main'", "datasets/tree.py", "value.values() if isinstance(value, Mapping) else [value]", "[value]"),
    ("stream: a resumed pass reads what was not taken", "loaders/test_iterable.py -k stateful_dataloader", "loaders/iterable.py", "skip, is_empty = place.taken % size, True", "skip, is_empty = 0, True"),
    ("plan: quotas are rounded by largest remainder", "loaders/test_plans.py -k early", "loaders/plan.py", "np.round(parts - exact, 6)", "np.round(exact - parts, 6)"),
    ("plan: a weight of 0 never comes", "loaders/test_plans.py -k share_rounded", "loaders/plan.py", "(line <= rest[:, None])", "(line < 0.9 * rest[:, None])"),
    ("plan: a group is not divided", "loaders/test_plans.py -k groups_stay", "loaders/plan.py", 'self.batch_size, "right") - 1]', 'self.batch_size, "right") - 1] - 1'),
    ("plan: a batch keeps its budget", "loaders/test_plans.py -k budget_limits", "loaders/planning.py", "np.maximum.at(largest, codes,", "np.minimum.at(largest, codes,"),
    ("plan: a state belongs to its plan", "loaders/test_plans.py -k belongs_to_its_plan", "loaders/agreement.py", 'if state.get("plan", "") != self._plan:', "if False:"),
    ("plan: a framework does not divide again", "loaders/test_plans.py -k around_ours", "loaders/sampler.py", "return isinstance(value, EpochSampler) or any(", "return any("),
    ("plan: each pass of a source has another order", "datasets/test_mixture.py -k 200_epochs", "loaders/plan.py", "passes * np.uint64(len(self._strata.sizes)) + strata.astype(np.uint64)", "passes * np.uint64(0)"),
    ("plan: sources have one schema", "datasets/test_mixture.py -k wrong_sources", "datasets/mixture.py", "if list(columns[0].items()) != list(columns[1].items()):", "if False:"),
    ("plan: a fold keeps groups together", "datasets/test_folds.py -k divide_the_records", "backends/selecting.py", "folds: Array = fold_of[groups]", "folds: Array = fold_of[groups - groups % 2]"),
    ("plan: folds have an index of their own", "datasets/test_folds.py -k divide_the_records", "backends/selecting.py", "repr(self.where), self.subsets)", "repr(self.where))"),
    ("plan: parts of one store keep their positions apart", "backends/test_views.py -k share_what", "backends/view.py", ", build=index.name", ""),
    ("plan: another part of a store is another source of pack", "ops/test_resuming.py -k other_records", "backends/view.py", "id=id_, ", ""),
    ("plan: errors of views count as their URL does", "backends/test_views.py -k as_its_url", "backends/view.py", "int(self._bounds[number]) + place, reason", "place, reason"),
    ("plan: a number of a mask keeps its name when stores are joined", "backends/test_many.py -k cannot_be_joined", "backends/class_numbers.py", "elif list(map(_json, every)) == list(map(_json, beginnings)):", "elif every:"),
    ("plan: splits by folds share no record", "datasets/test_folds.py -k splits_of_a_config", "config/splits.py", "if all(each.fold is None and each.keys_file is None for each in (one, other)):", "if True:"),
    ("plan: a window stays in its episode", "readers/test_sequence.py -k slices", "readers/rows.py", "inside = np.clip(wanted, starts[:, None], stops[:, None] - 1)", "inside = np.clip(wanted, 0, self.runs.bounds[-1] - 1)"),
    ("plan: padded rows are marked", "readers/test_sequence.py -k slices", "readers/rows.py", "outside = wanted != inside", "outside = wanted > inside"),
    # Statistics of pictures.
    ("stats: the unit of a sample is a picture of its size", "ops/test_statistics.py -k two_standard", "ops/statistics.py", "from_mean = sums - mean * size", "from_mean = sums - mean * size.mean()"),
    ("stats: the error of the deviation", "ops/test_statistics.py -k two_standard", "ops/statistics.py", "(mean * mean - variance) * size", "(mean * mean) * size"),
    ("stats: a damaged picture gives no pixels", "ops/test_statistics.py -k no_pixels", "ops/statistics.py", "repair=not in_files", "repair=True"),
    ("stats: a picture without a verdict is judged by decoding it", "ops/test_statistics.py -k no_pixels", "ops/statistics.py", "return None if UNCHECKED in kinds else", "return"),
    ("stats: another seed is another sample", "ops/test_statistics.py -k until_the_store", "ops/statistics.py", "(known.examined, known.seed) == (sample, seed)", "known.examined == sample"),
    ("stats: a replaced store is measured again", "ops/test_statistics.py -k until_the_store", "records/cache.py", "meta.id, meta.build, field", 'field, "", ""'),
    ("stats: Normalize takes the numbers of its mode", "ops/test_statistics.py -k with_these_numbers", "datasets/assembly.py", "else own.mode_of(element)", 'else "RGB"'),
)]
# fmt: on


def main() -> int:
    """Run the rows that the command line selects; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a regular expression; runs rows whose text contains it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="rows that run at once")
    parser.add_argument("--check", action="store_true", help="only look for the texts to replace")
    options = parser.parse_args()
    rows = [each for each in BREAKS if re.search(options.only, " ".join(each), re.IGNORECASE)]
    missing = [each for each in rows if (ROOT / "src/storeds" / each.file).read_text().count(each.old) != 1]
    for each in missing:
        print(f"the text is not there once: {each.promise} ({each.file})")
    if options.check or missing:
        return bool(missing)
    for name in PRELOADED:  # children of a fork need not import them
        importlib.import_module(name)
    begin, survivors = time.monotonic(), 0
    with contextlib.ExitStack() as stack:
        trees = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(options.jobs)]
        for name, tree in itertools.product(COPIED, trees):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tree / name)
        os.environ["STOREDS_TEST_MONGODB_URI"] = stack.enter_context(running_server())
        for row, verdict, seconds in tried(rows, trees):
            survivors += not verdict.startswith("fails")
            print(f"{row.promise:<70} {seconds:4.0f} s  {verdict}", flush=True)
    print(f"{len(rows)} mistakes, {survivors} of which no test notices, {time.monotonic() - begin:.0f} s")
    return bool(survivors)


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """Yield the URI of one MongoDB server for all rows: starting one takes seconds. It ends with this process."""
    program = "import pathlib, sys\nfrom storeds.testing import run_mongod\n"
    program += "with run_mongod(pathlib.Path(sys.argv[1])) as uri:\n    print(uri, flush=True)\n    sys.stdin.read()"
    with tempfile.TemporaryDirectory() as folder:
        command, pipe = [sys.executable, "-c", program, folder], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:  # noqa: S603
            assert server.stdin is not None
            assert server.stdout is not None
            yield server.stdout.readline().strip()
            server.stdin.close()


def tried(rows: list[Break], trees: list[Path]) -> Iterator[tuple[Break, str, float]]:
    """Run the tests of each row in a child, as many at once as there are trees; yield what they say, and the seconds."""
    waiting, running = rows[::-1], dict[int, tuple[Break, Path, str, float]]()
    while waiting or running:
        while waiting and trees:
            row, tree = waiting.pop(), trees.pop()
            file = tree / "src/storeds" / row.file
            text = file.read_text()
            file.write_text(text.replace(row.old, row.new))
            (tree / "report.xml").unlink(missing_ok=True)
            child = os.fork()
            if not child:
                run_tests(row, tree)
            running[child] = row, tree, text, time.monotonic()
        time.sleep(0.1)
        for child, (row, tree, text, begin) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            seconds = time.monotonic() - begin
            if not ended and seconds < LIMIT:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            if not ended:
                os.waitpid(child, 0)
            del running[child]
            (tree / "src/storeds" / row.file).write_text(text)
            yield row, outcome(tree, status) if ended else f"fails: does not end within {LIMIT} s", seconds
            trees.append(tree)


def run_tests(row: Break, tree: Path) -> None:
    """Run the tests of a row in this forked child, which ends with pytest's exit code."""
    code = 99
    try:
        os.setsid()
        log = os.open(tree / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(tree)
        sys.path[:0] = [str(tree / "src")]
        os.environ |= {"PYTHONPATH": str(tree / "src"), "STOREDS_TEST_SEED": "3", "STOREDS_CACHE": str(tree / "cache")}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        tests = [f"tests/{each}" if ".py" in each else each for each in shlex.split(row.tests)]
        files = [f"--junitxml={tree / 'report.xml'}", f"--basetemp={tree / 'files'}"]
        code = sys.modules["pytest"].main([*OPTIONS, *files, *tests])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def outcome(tree: Path, status: int) -> str:
    """Return ``fails: NAME: REASON``, or how the tests of a row fail to notice the mistake."""
    code, report = os.waitstatus_to_exitcode(status), tree / "report.xml"
    if code == 0:
        return "SURVIVES"
    if code == 1 and not report.exists():
        return "fails: a test does not end"  # pytest-timeout has ended pytest
    if code == 1:
        for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314  # pytest wrote it
            for failure in case.findall("failure"):
                reason = (failure.get("message") or "").replace("\n", " ")[:60]
                wrong = reason.startswith(("ImportError", "ModuleNotFoundError", "SyntaxError", "NameError"))
                return f"{'BROKEN' if wrong else 'fails'}: {case.get('name')}: {reason}"
    return f"BROKEN: {code}: {(tree / 'log').read_text().strip().splitlines()[-1:]}"


if __name__ == "__main__":
    sys.exit(main())
