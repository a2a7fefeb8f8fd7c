"""Rules of loops: what is pushed out of them, batched, merged."""
