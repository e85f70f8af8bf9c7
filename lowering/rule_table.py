"""Table of rules by operator, written with the operators of one rule in a row."""

from __future__ import annotations

from typing import TypeVar

RuleT = TypeVar("RuleT")


def rule_table(*groups: tuple[RuleT, str]) -> dict[str, RuleT]:
    """Map the operators of torch that are named with each rule to it.

    >>> rule_table((1, "sum mean"), (2, "cat"))
    {'aten.sum': 1, 'aten.mean': 1, 'aten.cat': 2}
    """
    return {f"aten.{name}": rule for rule, names in groups for name in names.split()}
