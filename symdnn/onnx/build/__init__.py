"""From nodes of a file to expressions: scopes, functions, and what is known of shapes."""
