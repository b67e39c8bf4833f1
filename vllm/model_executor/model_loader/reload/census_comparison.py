# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Compare two censuses: of one model at two moments, or of two models."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import torch

from .census import Census, TensorRecord, take_census

__all__ = ["AuditReport", "Finding", "FindingKind", "compare", "compare_models"]

FindingKind = Literal[
    "missing", "new", "rebound", "moved", "resized", "mismatched", "changed", "grown"
]

# Names that a detail lists before it says that there are more.
MAX_LISTED = 5


@dataclass(frozen=True)
class Finding:
    """One difference.

    Kinds: `missing`, `new`: a name that only one side has. `rebound`: another tensor
    object under the name. `moved`: another address. `resized`: another number of bytes,
    of the tensor or of its storage. `mismatched`: another shape, stride, dtype, kind,
    class, device type or aliasing. `changed`: other contents in the same layout.
    `grown`: more memory held on the device that it names.
    """

    kind: FindingKind
    name: str
    detail: str


@dataclass(frozen=True)
class AuditReport:
    """What a comparison found."""

    findings: tuple[Finding, ...]
    audited: str
    """What was compared: the summary of the later, or warm, census."""

    @property
    def ok(self) -> bool:
        """Whether no difference was found."""
        return not self.findings

    @property
    def summary(self) -> str:
        """The verdict and what was compared, in one line."""
        counts = Counter(finding.kind for finding in self.findings)
        verdict = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        return f"{verdict or 'no difference'}; audited {self.audited}"

    def to_table(self) -> str:
        """A line for each finding, then the summary."""
        if self.ok:
            return self.summary
        # A requirement of vLLM's requirements, not of vLLM itself.
        from tabulate import tabulate

        rows = [(f.kind, f.name, f.detail) for f in self.findings]
        headers = ("finding", "tensor", "detail")
        table = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
        return f"{table}\n\n{self.summary}"

    def to_json(self) -> str:
        """A JSON object with `ok`, `summary` and `findings`."""
        report = {"ok": self.ok, "summary": self.summary, "findings": self.findings}
        return msgspec.json.format(msgspec.json.encode(report)).decode()


class _Pair(NamedTuple):
    """The tensors that two censuses have under the same names."""

    old: TensorRecord | None
    new: TensorRecord | None
    names: list[str]


def compare(before: Census, after: Census) -> AuditReport:
    """List how the tensors of one model differ between two moments.

    Contents are compared if both censuses have digests.

    Args:
        before: census taken first.
        after: census of the same model, taken later in the same process.

    Returns:
        Findings in the order of the census, memory growth last.

    Raises:
        ValueError: the censuses are of different processes, so that their addresses
            and objects have nothing to do with each other.

    """
    for census in (before, after):
        if not isinstance(census, Census):
            raise ValueError(
                f"cannot compare a {type(census).__name__}: expected a Census; pass "
                "take_census(model)"
            )
    if before.process != after.process:
        raise ValueError(
            f"cannot compare addresses of two processes, {before.process} and "
            f"{after.process}: expected censuses of one process. To compare names and "
            "contents, use compare_models (--models on the command line)"
        )
    findings: list[Finding] = []
    for pair in _pairs(before, after):
        if pair.old is None or pair.new is None:
            findings.append(_presence(pair, before, after))
        else:
            findings += _placement(pair.names, pair.old, pair.new)
            fields = ("dtype", "shape", "stride", "type")
            findings += _mismatch(pair.names, pair.old, pair.new, fields)
            findings += _contents(pair.names, pair.old, pair.new)
    findings += _growth(before, after)
    digested = before.digested and after.digested
    note = "" if digested else "; contents not compared"
    return AuditReport(tuple(findings), after.summary + note)


def compare_models(
    warm: torch.nn.Module | Census, cold: torch.nn.Module | Census
) -> AuditReport:
    """List how a reloaded model differs from one started on the same checkpoint.

    Compared are names, shapes, strides, dtypes, kinds, device types, contents, and
    which names share a storage. Addresses, objects, classes and storage sizes may
    differ. Runtime state is left out.

    Args:
        warm: the reloaded model, or a census of it.
        cold: the model to be equal to, or a census of it, from any process.

    Returns:
        Findings in the order of the cold census; `missing` is what only `cold` has,
        and an arrow leads from cold to warm.

    Raises:
        ValueError: a census was taken without digests.

    """
    warm, cold = _digested_census(warm), _digested_census(cold)
    findings: list[Finding] = []
    shared: list[str] = []
    for pair in _pairs(cold, warm):
        if any(r is not None and r.runtime_state for r in (pair.old, pair.new)):
            continue
        if pair.old is None or pair.new is None:
            findings.append(_presence(pair, cold, warm))
        else:
            shared += pair.names
            fields = ("dtype", "shape", "stride", "device_type")
            findings += _mismatch(pair.names, pair.old, pair.new, fields)
            findings += _contents(pair.names, pair.old, pair.new)
    findings += _aliasing(cold, warm, shared)
    return AuditReport(tuple(findings), warm.summary)


def _digested_census(side: torch.nn.Module | Census) -> Census:
    census = side if isinstance(side, Census) else take_census(side)
    if not census.digested:
        raise ValueError(
            "cannot compare contents: a census has no digests, expected both to have "
            "them; take it again with take_census(model, digest=True)"
        )
    return census


def _pairs(before: Census, after: Census) -> Iterable[_Pair]:
    """All names of both, grouped by the two tensors that they stand for."""
    pairs: dict[tuple[int, int], _Pair] = {}
    for name in before.by_name | after.by_name:
        old, new = before.by_name.get(name), after.by_name.get(name)
        pair = pairs.setdefault((id(old), id(new)), _Pair(old, new, []))
        pair.names.append(name)
    return pairs.values()


def _finding(kind: FindingKind, names: list[str], detail: str) -> Finding:
    more = f" (and under {len(names) - 1} other names)" if len(names) > 1 else ""
    return Finding(kind, names[0], f"{detail}{more}")


def _presence(pair: _Pair, before: Census, after: Census) -> Finding:
    """A name that only one side has, and what the tensor is called on the other."""
    record = pair.old or pair.new
    assert record is not None
    detail = f"{record.names[pair.names[0]]}, {record.dtype} {list(record.shape or ())}"
    if before.process == after.process:
        others = (after if pair.old else before).records
        if same := [r.name for r in others if r.identity == record.identity]:
            detail += f", {'now' if pair.old else 'before'} {same[0]}"
    return _finding("missing" if pair.old else "new", pair.names, detail)


def _placement(
    names: list[str], old: TensorRecord, new: TensorRecord
) -> Iterator[Finding]:
    if old.identity != new.identity:
        yield _finding("rebound", names, f"another {new.type} object")
    if (old.device, old.address) != (new.device, new.address):
        yield _finding("moved", names, f"{_place(old)} -> {_place(new)}")
    if sizes := _differences(old, new, ("nbytes", "storage_bytes")):
        yield _finding("resized", names, ", ".join(sizes))


def _mismatch(
    names: list[str], old: TensorRecord, new: TensorRecord, fields: Iterable[str]
) -> Iterator[Finding]:
    differences = _differences(old, new, fields)
    kinds = {(old.names[name], new.names[name]) for name in names}
    differences += [f"kind {a} -> {b}" for a, b in sorted(kinds) if a != b]
    if differences:
        yield _finding("mismatched", names, ", ".join(differences))


def _contents(
    names: list[str], old: TensorRecord, new: TensorRecord
) -> Iterator[Finding]:
    # A digest follows the layout, and a difference in layout is a finding of its own.
    same_layout = (old.shape, old.stride) == (new.shape, new.stride)
    if old.digest and new.digest and old.digest != new.digest and same_layout:
        detail = f"digest {old.digest[:12]} -> {new.digest[:12]}"
        yield _finding("changed", names, detail)


def _growth(before: Census, after: Census) -> Iterator[Finding]:
    """Devices on which more storage is held, with the storages that grew or are new."""
    known = {(m.device, m.start): m.end - m.start for m in before.memory}
    for device, size in after.device_bytes.items():
        old_size = before.device_bytes.get(device, 0)
        if size <= old_size:
            continue
        growths = [
            (m.records[0].name, m.end - m.start - known.get((device, m.start), 0))
            for m in after.memory
            if m.device == device
        ]
        grown = [f"{name} +{growth:,}" for name, growth in growths if growth > 0]
        detail = f"{old_size:,} -> {size:,} bytes (+{size - old_size:,})"
        storages = f"new or larger storages: {_listed(grown)}"
        yield Finding("grown", device, f"{detail}; {storages}")


def _aliasing(cold: Census, warm: Census, names: list[str]) -> Iterator[Finding]:
    """Names that share a storage with other names in one model than in the other."""
    in_cold, in_warm = _storage_mates(cold, names), _storage_mates(warm, names)
    groups: dict[tuple[int, int], list[str]] = {}
    for name in names:
        groups.setdefault((id(in_cold[name]), id(in_warm[name])), []).append(name)
    for group in groups.values():
        sides = in_cold[group[0]], in_warm[group[0]]
        if sides[0].keys() != sides[1].keys():
            cold_mates, warm_mates = (_other_than(group, side) for side in sides)
            detail = f"shares its storage with {cold_mates} -> {warm_mates}"
            yield _finding("mismatched", group, detail)


def _other_than(group: list[str], mates: Iterable[str]) -> str:
    members = set(group)
    return _listed(name for name in mates if name not in members)


def _storage_mates(census: Census, names: list[str]) -> dict[str, dict[str, None]]:
    """For each name, the names on the same storage, itself included."""
    wanted = set(names)
    mates = {name: dict.fromkeys([name]) for name in names}
    for memory in census.memory:
        group = {n: None for r in memory.records for n in r.names if n in wanted}
        mates.update(dict.fromkeys(group, group))
    return mates


def _differences(
    old: TensorRecord, new: TensorRecord, fields: Iterable[str]
) -> list[str]:
    values = [(field, getattr(old, field), getattr(new, field)) for field in fields]
    return [f"{field} {a} -> {b}" for field, a, b in values if a != b]


def _place(record: TensorRecord) -> str:
    address = "no address" if record.address is None else f"{record.address:#x}"
    return f"{address} on {record.device}"


def _listed(names: Iterable[str]) -> str:
    first = list(itertools.islice(names, MAX_LISTED + 1))
    more = " and more" if len(first) > MAX_LISTED else ""
    return (", ".join(first[:MAX_LISTED]) or "nothing") + more
