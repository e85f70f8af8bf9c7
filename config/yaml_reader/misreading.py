"""Values that YAML reads as another type than their author meant."""

from __future__ import annotations

import re

import yaml

from ..diagnostics import truncate
from .nodes import TAG

_EXPONENT = re.compile(r"([-+]?[0-9]+)(\.[0-9]*)?[eE]([-+]?)([0-9]+)")


def misreading(node: yaml.Node | None) -> str:
    """Explain how YAML read a value that looks like something else.

    >>> [misreading(yaml.compose(text)) for text in ("no", "1e-5", "'8'", "8")]
    [' (YAML reads no as a boolean: quote it if a text is meant)', ' (YAML takes 1e-5 for text: write 1.0e-5)',
     ' (without the quotes it is no text)', '']
    """
    if not isinstance(node, yaml.ScalarNode):
        return ""
    if node.style in ("'", '"'):
        bare = yaml.compose(node.value, Loader=yaml.SafeLoader) if node.value.isalnum() else None
        return "" if bare is None or bare.tag == f"{TAG}str" else " (without the quotes it is no text)"
    if node.tag == f"{TAG}bool" and node.value.lower() not in ("true", "false"):
        return f" (YAML reads {node.value} as a boolean: quote it if a text is meant)"
    number = _EXPONENT.fullmatch(node.value) if node.tag == f"{TAG}str" else None
    if number is None:
        return ""
    whole, fraction, sign, exponent = number.groups()
    return f" (YAML takes {truncate(node.value)} for text: write {whole}{fraction or '.0'}e{sign or '+'}{exponent})"
