"""Ways to make a plan, one per file: the exact planner, the auction, and the rules of thumb to compare with."""
