"""Optimisers, cross-validation and models that several maps are fitted with."""
