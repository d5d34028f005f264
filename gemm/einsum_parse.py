"""The subscripts of an einsum call as labels.

A label is an integer: the code point of a letter, the integer of the sublist form, or, for an axis
that an ellipsis covers, its negative position from the right. So any number of labels will do.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

Labels = tuple[int, ...]
Term = tuple[Any, ...]  # of int and Ellipsis


def split_call(arguments: Sequence[Any]) -> tuple[Any, list[Any]]:
    """(subscripts, operands) of either call form; subscripts are hashable.

    einsum('ij,jk->ik', a, b) gives ('ij,jk->ik', [a, b]); einsum(a, [0, 1], b, [1, 2], [0, 2])
    gives ((((0, 1), (1, 2)), (0, 2)), [a, b]), with None for an output that is not given.
    """
    if not arguments:
        raise ValueError("einsum: no operands; give subscripts and at least one operand")
    if isinstance(arguments[0], str):
        if len(arguments) == 1:
            raise ValueError(f"einsum: no operands for subscripts {arguments[0]!r}")
        return str(arguments[0]), list(arguments[1:])
    if len(arguments) == 1:
        raise ValueError("einsum: an operand without its list of subscripts")
    terms = tuple(_sublist(x) for x in arguments[1::2])
    given = _sublist(arguments[-1]) if len(arguments) % 2 else None
    return (terms, given), list(arguments[: 2 * len(terms) : 2])


def _sublist(subscripts: Any) -> Term:
    try:
        items = list(subscripts)
    except TypeError:
        raise TypeError(
            f"einsum: subscripts must be a string, or lists of integers and Ellipsis, "
            f"not {type(subscripts).__name__}"
        ) from None
    result: list[Any] = []
    for item in items:
        if item is Ellipsis:
            result.append(item)
            continue
        try:
            label = operator.index(item)
        except TypeError:
            raise TypeError(
                f"einsum: each subscript must be either an integer or an ellipsis, not {item!r}"
            ) from None
        if label < 0:
            raise ValueError(f"einsum: subscripts must not be negative, got {label}")
        result.append(label)
    if result.count(Ellipsis) > 1:
        raise ValueError(f"einsum: more than one ellipsis in {items}")
    return tuple(result)


def parse(subscripts: Any, ndims: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand and of the output; `ndims` are the operands' dimensions.

    Raises ValueError for whatever NumPy refuses: characters, counts, ellipses, output labels.
    """
    terms, output = _terms(subscripts) if isinstance(subscripts, str) else subscripts
    if len(terms) != len(ndims):
        raise ValueError(
            f"einsum: {len(terms)} terms in the subscripts but {len(ndims)} operands were given"
        )
    inputs = []
    for i, (term, ndim) in enumerate(zip(terms, ndims, strict=True)):
        covered = ndim - sum(x is not Ellipsis for x in term)
        if covered < 0 or (covered and Ellipsis not in term):
            raise ValueError(
                f"einsum: operand {i} has {ndim} dimensions but its subscripts "
                f"{_text(term)!r} name {ndim - covered}"
            )
        inputs.append(_expand(term, covered))
    broadcast = min((x for labels in inputs for x in labels), default=0)
    covered = max(-broadcast, 0)
    if output is None:
        counts = Counter(x for labels in inputs for x in labels)
        single = sorted(x for x, count in counts.items() if count == 1 and x >= 0)
        return inputs, (*range(-covered, 0), *single)
    if covered and Ellipsis not in output:
        raise ValueError(
            f"einsum: an ellipsis stands for {covered} dimensions of the operands, but the output "
            f"{_text(output)!r} has no '...'"
        )
    result = _expand(output, covered)
    known = {x for labels in inputs for x in labels}
    for label in result:
        if result.count(label) > 1:
            raise ValueError(
                f"einsum: output subscripts include {_text((label,))!r} more than once"
            )
        if label not in known:
            raise ValueError(
                f"einsum: output subscripts include {_text((label,))!r}, which no operand has"
            )
    return inputs, result


def _terms(subscripts: str) -> tuple[list[Term], Term | None]:
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = [_letters(term, subscripts) for term in left.split(",")]
    return terms, _letters(right, subscripts) if arrow else None


def _letters(term: str, subscripts: str) -> Term:
    before, dots, after = term.partition("...")
    for letter in before + after:
        if not (letter.isalpha() or ord(letter) > 127):
            raise ValueError(f"einsum: invalid subscript {letter!r} in {subscripts!r}")
    middle: Term = (Ellipsis,) if dots else ()
    return (*map(ord, before), *middle, *map(ord, after))


def _expand(term: Term, covered: int) -> Labels:
    labels: list[int] = []
    for x in term:
        labels.extend(range(-covered, 0) if x is Ellipsis else (x,))
    return tuple(labels)


def _text(term: Term) -> str:
    return "".join("..." if x is Ellipsis else label_text(x) for x in term)


def label_text(label: int) -> str:
    """A label as the user wrote it, for error messages."""
    if label < 0:
        return f"(ellipsis axis {label})"
    return chr(label) if label > 64 else f"[{label}]"
