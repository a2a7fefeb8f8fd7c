"""Rules of loops: code motion out of the body, dead outputs, histories that need not be kept."""
