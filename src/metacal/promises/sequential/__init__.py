"""Sequential: labels that arrive one after the other, and monitors of a gate at work."""
