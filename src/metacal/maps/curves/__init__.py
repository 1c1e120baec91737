"""Maps made of curves: one for each class against the rest, or one for the top label."""
