"""From an expression to a callable function: program, plans, execution, reports."""
