"""What a file holds: its types, its values, its nodes; and how it is read and checked."""
