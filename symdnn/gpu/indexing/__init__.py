"""Elements that index arrays or masks select: gathered, scattered, counted."""
