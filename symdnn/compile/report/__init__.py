"""What a function says of itself: reports, profiles, traces."""
