"""`python -m tools.operator_database`: try the rules of ragged batches with torch's own operator database.

It prints the table of docs/models.md, and what was wrong. `--samples 2` tries two samples of each operator and dtype.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import torch

from torchserve_neuron_lstm.lowering.ragged.rules import RULES, rule_of

from .database import DTYPES, Sample, operators, samples
from .trial import Trial, trials

_OTHER = "torch's own code"
COMPOSED = (
    *("einsum", "roll", "index_add", "index_copy", "index_fill"),
    *("tril", "triu", "nn.functional.glu", "movedim", "norm"),
    *("repeat_interleave", "nn.functional.prelu", "addmm", "addmv", "baddbmm", "quantile", "nanquantile"),
)
"""Operators without a rule, which torch's own code puts together from those that have one."""


def main() -> None:
    """Try the operators that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=None, help="samples of each operator and dtype; all by default")
    parser.add_argument("operators", nargs="*", help="names in the database; all by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {name: tried(name, arguments.samples) for name in arguments.operators or everything()}
    print(*table(results), sep="\n")
    for name, found in results.items():
        for trial in found:
            if trial.outcome == "wrong":
                print(f"wrong: {name}: {trial.reason}")


def usable() -> list[str]:
    """Return the names of the operators that answer a request alone, always in the same way."""
    return [name for name in operators() if not any(word in name for word in _LEFT_OUT)]


def with_a_rule() -> list[str]:
    """Return the names of the usable operators that the table of rules names."""
    return [name for name in usable() if _base(name) in RULES]


def everything() -> list[str]:
    """Return the names of the usable operators with a rule, those by element among them, and of some composed ones."""
    named = with_a_rule()
    return [*named, *COMPOSED, *(name for name in usable() if name not in named and _is_pointwise(_base(name)))]


def _is_pointwise(base: str) -> bool:
    packet = getattr(torch.ops.aten, base.removeprefix("aten."), None)
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())


_LEFT_OUT = (
    # nothing is initialised, or drawn at random
    *("empty", "rand", "normal", "cauchy", "exponential", "geometric", "uniform", "bernoulli", "multinomial"),
    *("dropout", "rrelu", "fractional_max_pool", "resize", "svd_lowrank", "pca_lowrank"),
    # memory is written or read beyond its end where arguments do not fit together
    *("native_batch_norm", "batch_norm_legit", "_batch_norm_with_update", "max_unpool", "as_strided"),
    *("max_pool2d_with_indices_backward", "_segment_reduce", "ctc_loss"),
    # layouts and devices that are not served
    *("jiterator", "sparse", "triton"),
)


def tried(name: str, most: int | None = None, dtypes: Sequence[torch.dtype] = DTYPES) -> list[Trial]:
    """Try samples of an operator, spread over those that the database has."""
    return [
        trial for dtype in dtypes for sample in _spread(list(samples(name, dtype)), most) for trial in trials(sample)
    ]


def _spread(items: list[Sample], most: int | None) -> list[Sample]:
    step = 1 if most is None else max(1, len(items) // most)
    return items[::step][:most]


def table(results: Mapping[str, Iterable[Trial]]) -> Iterator[str]:
    """Yield the lines of a table: rule, operators, and how many trials had which outcome."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    names: dict[str, list[str]] = defaultdict(list)
    for name, found in results.items():
        outcomes = Counter(trial.outcome for trial in found if trial.outcome in ("lowered", "refused", "wrong"))
        if outcomes:
            rule = _rule_name(name, {operator for trial in found for operator in trial.operators})
            counts[rule].update(outcomes)
            names[rule].append(name.removeprefix("nn.functional."))
    yield "| rule | operators of the database | tried | lowered | refused | wrong |"
    yield "|---|---|---|---|---|---|"
    for rule in sorted(counts, key=lambda rule: (rule == _OTHER, rule)):
        own = counts[rule]
        cells = [rule, " ".join(names[rule]), own.total(), own["lowered"], own["refused"], own["wrong"]]
        yield f"| {' | '.join(map(str, cells))} |"
    total = sum(counts.values(), Counter[str]())
    yield f"| all | | {total.total()} | {total['lowered']} | {total['refused']} | {total['wrong']} |"


def _rule_name(name: str, targets: set[str]) -> str:
    """Return the rule of the operator that the database's entry calls."""
    base = _base(name)
    target = next((target for target in targets if target.startswith(f"{base}.")), None)
    if target is None:
        return _OTHER if targets else "none"
    rule = RULES.get(base) or rule_of(attrgetter(target)(torch.ops))
    if rule is None:
        return "none"
    rule = getattr(rule, "func", rule)  # of a partial one
    module = rule.__module__.rsplit(".", 1)[1].removesuffix("_rules")
    return f"`{module}.{rule.__qualname__.split('.')[0]}`"


def _base(name: str) -> str:
    return f"aten.{operators()[name].aten_name.removeprefix('nn.functional.')}"


if __name__ == "__main__":
    main()
