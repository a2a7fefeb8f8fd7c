"""The subcommands of ``symdnn``, a module each: their options, and what they print."""
