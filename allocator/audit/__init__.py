"""The audit: what can be known to fail before launch, one rule a function, all in one table.

Rules read a scenario and what the evaluator says of one plan of it; they hold no law of their own.
"""

from allocator.audit.finding import Finding, Level, Planned, Rule
from allocator.audit.rules import PLAN_RULES, SCENARIO_RULES, audit

__all__ = ["PLAN_RULES", "SCENARIO_RULES", "Finding", "Level", "Planned", "Rule", "audit"]
