"""The folder of published versions. Trainers write it. Servers, relays and object stores serve it.

VERSION-anchor.json, VERSION-from-BASE.json    manifests
index.json                                     the packages and their sizes
chunks/AB/AB...                                encoded pieces, by SHA-256
parts/                                         manifests of single ranks, until the version is complete
pins/, acks/                                   packages in use (`claims`)
publisher.json                                 the number of the newest publisher (`fence`)
store.lock                                     held for any change, except in chunks and parts

Several processes may use a folder at once if its file system shares locks between them."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import torch

from rose.ledger.files import keys
from rose.transfer.codec.bits import digest, from_bits, to_bits
from rose.transfer.codec.choice import LINK, Link
from rose.transfer.errors import ConflictError, TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.package.cuts import Cut, Key, check_same_layout
from rose.transfer.package.manifest import Manifest, check_chain, check_sound, check_version, merge_parts, plan
from rose.transfer.package.parts import Parts, Writer
from rose.transfer.sources.sharing import cut_whole
from rose.transfer.store.catalog import Catalog
from rose.transfer.store.chunks import ChunkFolder
from rose.transfer.store.claims import Claims, unneeded
from rose.transfer.store.encoder import EncoderState, encode_first, encode_more, rebuild
from rose.transfer.store.fence import Fence

logger = logging.getLogger(__name__)

ALONE = Writer()
_RATES = 16  # Several engines fetch through one relay, and only the first waits for its link.

#: The manifests of a version: against the one before, or whole; then those against earlier versions, and an anchor.
Published = tuple[Manifest, ...]


class VersionStore:
    """Publishes versions into `folder`, and every `anchor_every`-th one also in full."""

    def __init__(
        self,
        folder: Path,
        *,
        anchor_every: int = 8,
        anchors_kept: int = 2,
        run_id: str = "",
        fence: int | None = None,
        key: keys.Key | None = None,
        receiver_ttl_s: float = 3600.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        if anchor_every < 1 or anchors_kept < 1:
            raise ValueError(f"anchor_every {anchor_every} and anchors_kept {anchors_kept} must be at least 1")
        self.folder, self.anchor_every, self.anchors_kept = folder, anchor_every, anchors_kept
        self.receiver_ttl_s = receiver_ttl_s
        self._catalog = Catalog(folder, key)
        self.packages, self.latest = self._catalog.packages, self._catalog.latest
        self.manifest = self._catalog.manifest
        self._chunks = ChunkFolder(folder / "chunks")
        self._parts = Parts(folder / "parts")
        self.claims = Claims(folder, now, self._catalog.locked)
        self.run_id = run_id
        self._fence = Fence(folder, run_id, fence)
        self._state: EncoderState | None = None
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._swept = False  # Whether a manifest or part names every file in `chunks`.

    @property
    def link(self) -> Link:
        return replace(LINK, bytes_per_s=min(self._rates, default=LINK.bytes_per_s))

    def measured(self, bytes_per_s: float) -> None:
        self._rates.append(bytes_per_s)

    def check_run(self) -> None:
        with self._catalog.locked():
            self._fence.check_run(self.packages())

    def weights_sha256(self, version: int) -> str:
        return self._catalog.any_of(version).weights_sha256

    def newest(self) -> tuple[int, Mapping[str, torch.Tensor]]:
        """Return the newest version and its tensors, which are valid until the next version. Raises TransferError."""
        if (version := self.latest()) is None:
            raise TransferError(f"{self.folder} has no version: publish a folder of the whole weights first")
        infos = self._catalog.any_of(version).tensors
        keys = {info.name: (info.name, Region.whole(info.shape)) for info in infos}
        if self._state is None or self._state.version != version or self._state.bits.keys() != set(keys.values()):
            chain = [self.manifest(package) for package in plan(self.packages(), version, None)]
            self._state = rebuild(chain, keys.values(), self._chunks)
        bits = self._state.bits
        return version, {info.name: from_bits(bits[keys[info.name]], info.dtype) for info in infos}

    def publish(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, visible: Callable[[], object] = lambda: None
    ) -> Published:
        """Publish `version`. Write it as a delta, and call `visible` as soon as receivers can fetch it. Then write the
        other packages that are due. Return all manifests. Raises TransferError."""
        check_version(version)
        if (latest := self.latest()) is not None and version <= latest:
            raise TransferError(f"version {version} is not newer than version {latest} in {self.folder}")
        self._hold_fence(version)
        published = self._publish(version, cut_whole(tensors), ALONE, visible)
        assert published is not None, "there are no other ranks to wait for"
        return published

    def publish_part(
        self, version: int, writer: Writer, cuts: Sequence[Cut], *, written: Callable[[], object] = lambda: None
    ) -> Published | None:
        """Publish the pieces of one trainer rank, and call `written` once they are written. Return the manifests of the
        version if this rank completes it, else None. Raises TransferError."""
        check_version(version)
        if (latest := self.latest()) is not None and version <= latest:
            if version == latest:
                whole = writer.ranks == 1
                check_same_layout(self._catalog.any_of(version).tensors, cuts, version, whole=whole)
            results = {cut.key: digest(to_bits(cut.info.name, cut.elements())) for cut in cuts}
            self._check_repeated(version, results)
            return None
        if self._fence.given:
            self._hold_fence(version)
        return self._publish(version, cuts, writer, written)

    def prune(self) -> None:
        try:
            with self._catalog.locked():
                gone = unneeded(
                    self.packages(),
                    anchors_kept=self.anchors_kept,
                    pinned=self.claims.pinned(),
                    acknowledged=self.claims.acknowledged(self.receiver_ttl_s).values(),
                )
                if gone or not self._swept:
                    self._catalog.remove(gone)
                    self._swept = self._chunks.sweep(lambda: self._catalog.chunks() | self._parts.chunks())
                    self._catalog.refresh()  # This comes last, because a full disk has room only now.
        except OSError as error:
            raise TransferError(f"{self.folder} cannot be pruned ({error.strerror}); no needed version was lost")

    def _publish(
        self, version: int, cuts: Sequence[Cut], writer: Writer, written: Callable[[], object]
    ) -> Published | None:
        state = self._base(version, cuts, writer)
        # The steps below use up `_state` and write chunks. After a failure, the base is read from the folder again.
        self._state, swept, self._swept = None, self._swept, False
        try:
            with self._chunks.writing():
                anchor = state is not None and self._anchor_due(version, state, writer)
                first, now = encode_first(version, cuts, state, self._chunks, anchor=anchor, link=self.link)
                self._chunks.sync()
                published = self._complete(replace(first, run_id=self.run_id), writer)
            written()
            if state is not None:
                with self._chunks.writing():
                    stride_max = self.anchor_every * self.anchors_kept  # No base is older than the oldest anchor.
                    more = encode_more(cuts, now, self._chunks, anchor=anchor, stride_max=stride_max, link=self.link)
                    self._chunks.sync()
                    added = self._complete_more([replace(part, run_id=self.run_id) for part in more], writer)
                # No manifest names the chunks of a package that was left out or that waits for other ranks.
                swept = swept and len(added) == len(more)
                if published is not None:
                    published = (*published, *added)
        except OSError as error:
            with suppress(TransferError):
                self.prune()
            raise TransferError(self._no_room(version, error))
        self._state, self._swept = now, swept
        if published is not None:
            self.prune()
        return published

    def _base(self, version: int, cuts: Sequence[Cut], writer: Writer) -> EncoderState | None:
        keys = {cut.key for cut in cuts}
        whole = writer.ranks == 1
        state, latest = self._state, self.latest()
        if (
            state is not None
            and state.version < version
            and state.bits.keys() == keys
            # If the version is neither complete nor waits for parts, all ranks restarted from an earlier version.
            and (state.version == latest or self._parts.has(state.version, writer))
        ):
            check_same_layout(state.tensors.values(), cuts, state.version, whole=whole)
            return state
        if latest is None:
            return None
        check_same_layout(self._catalog.any_of(latest).tensors, cuts, latest, whole=whole)
        return rebuild([self.manifest(package) for package in plan(self.packages(), latest, None)], keys, self._chunks)

    def _complete(self, part: Manifest, writer: Writer) -> Published | None:
        version = part.version
        with self._catalog.locked():
            if self._fence.given:
                self._fence.hold(self.packages())
            else:
                self._fence.check_run(self.packages())
            if (latest := self.latest()) is not None and version <= latest:
                self._check_repeated(version, {(p.name, p.region): p.result_xxh3 for p in part.pieces})
                return None
            if (manifest := self._merged(part, writer)) is None:
                self._parts.check_base(part.package, writer)
                return None
            if manifest.base_version is not None:
                check_chain([self._catalog.any_of(manifest.base_version), manifest])
            self._catalog.add([manifest])
            self._parts.forget(manifest.package)
        return (manifest,)

    def _complete_more(self, parts: Sequence[Manifest], writer: Writer) -> list[Manifest]:
        with self._catalog.locked():
            whole = [manifest for part in parts if (manifest := self._merged(part, writer)) is not None]
            anchor = next((manifest.blob_bytes for manifest in whole if manifest.base_version is None), math.inf)
            # A composite as large as the anchor has no use beside it.
            added = [package for package in whole if package.base_version is None or package.blob_bytes < anchor]
            if added:
                self._catalog.add(added)
            for manifest in whole:
                self._parts.forget(manifest.package)
        return added

    def _hold_fence(self, version: int) -> None:
        try:
            with self._catalog.locked():
                self._fence.hold(self.packages())
        except OSError as error:
            raise TransferError(self._no_room(version, error))

    def _merged(self, part: Manifest, writer: Writer) -> Manifest | None:
        if writer.ranks == 1:
            check_sound(part, whole=True)
            return part
        self._parts.write(writer, part)
        others = self._parts.of_others(part.package, writer)
        return None if others is None else merge_parts([part, *others])

    def _anchor_due(self, version: int, state: EncoderState, writer: Writer) -> bool:
        anchors = (package.version for package in self.packages() if package.base_version is None)
        since = state.version if writer.ranks > 1 else max(anchors, default=None)
        return since is None or version // self.anchor_every > since // self.anchor_every

    def _no_room(self, version: int, error: OSError) -> str:
        if version == self.latest():
            return f"version {version} is published, but its other packages are not ({error.strerror}): make room"
        return f"version {version} cannot be written to {self.folder} ({error.strerror}): make room and publish again"

    def _check_repeated(self, version: int, results: Mapping[Key, str]) -> None:
        latest = self.latest()
        if version != latest:
            raise ConflictError(f"version {version} is not newer than version {latest} in {self.folder}")
        published = {(piece.name, piece.region): piece.result_xxh3 for piece in self._catalog.any_of(version).pieces}
        for (name, region), xxh3 in results.items():
            if published.get((name, region)) != xxh3:
                raise ConflictError(
                    f"version {version} exists in {self.folder} with {published.get((name, region))} for tensor "
                    f"{name!r} at {region}, but this publisher has {xxh3}: publish a newer version"
                )


class Publisher:
    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rose-publish")
        self._rest: Future[Published | None] | None = None

    def publish(self, version: int, cuts: Sequence[Cut], writer: Writer = ALONE) -> None:
        """Publish this rank's part of a version. Return once it is written: the trainer may then change its tensors. A
        thread writes the other packages. Raises TransferError."""
        self.wait()
        written: SimpleQueue[bool] = SimpleQueue()
        publishing = self._thread.submit(
            self._store.publish_part, version, writer, cuts, written=lambda: written.put(True)
        )
        publishing.add_done_callback(lambda _: written.put(False))
        if written.get():
            self._rest = publishing
        else:
            publishing.result()

    def wait(self) -> None:
        """Wait until the last version's packages are written. Errors are only logged: the next version repairs them."""
        rest, self._rest = self._rest, None
        if rest is not None:
            try:
                rest.result()
            except TransferError as error:
                logger.warning("%s", error)
