"""From an expression to a callable: function, schedule, plan, execution."""
