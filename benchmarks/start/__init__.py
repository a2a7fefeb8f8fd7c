"""What a user waits for and what a program takes: first calls and peak memory beside the peers."""
