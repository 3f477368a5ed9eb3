"""Pure planning: AI operators, statistics, cost and order. Imports neither Spark nor torch."""
