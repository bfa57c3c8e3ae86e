"""Linear programs, kept alive and warm between solves: a small facade over HiGHS."""

from dovetail.solve.lp import LinearProgram, NoAnswerError, Solution

__all__ = ["LinearProgram", "NoAnswerError", "Solution"]
