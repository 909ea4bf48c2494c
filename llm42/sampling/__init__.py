"""How a token is chosen from logits: one function, pure, in torch only."""

from llm42.sampling.margin import greedy_margins, race_margins
from llm42.sampling.select import SELECT_VERSION, Selected, choose, choose_each, select

__all__ = ["SELECT_VERSION", "Selected", "choose", "choose_each", "greedy_margins", "race_margins", "select"]
