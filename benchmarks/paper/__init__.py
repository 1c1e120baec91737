"""The experiments of the Meta-Cal paper."""
