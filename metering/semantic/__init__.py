"""Semantic units: the smallest complete clauses of a text, found while it is written."""

from metering.semantic.segmenter import Segmenter
from metering.semantic.units import SEGMENTER, Unit

__all__ = ["SEGMENTER", "Segmenter", "Unit"]
