"""metacal."""
