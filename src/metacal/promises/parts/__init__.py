"""Parts: classes and groups with a threshold each, units of rows that belong together, weights of
rows.
"""
